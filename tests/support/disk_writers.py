"""The functions of the project that write files: tests/test_atomic.py finds them, test_faulty_disk.py runs them."""

from __future__ import annotations

WHOLE = "into a folder or a file of benchmark/files.py, which is there at the end"
WRITERS = {  # by the scenario of tests/support/disk_scenarios*.py that lets each of its operations go wrong
    "records": {"records.append"},
    "json": {"files.whole_file"},
    "model": {"files.whole_folder", "models.transformer._write"},
    "grow": {"instruments.grow_checkpoint.grow_checkpoint"},
    "export": {"instruments.export_model.export_model"},
    "tokens": {"data.tokens._once", "data.tokens._tokenise", "data.tokens._write_ids"},
    "checkpoint": {"training.checkpoint.save"},
    "heartbeat": {"training.progress.show"},
    "lease": {"locks._claim", "locks._give_back"},
    "collect": {"jobs.results._write"},
    "unpack": {"jobs.results._put"},
    "commit": {"jobs.results._put"},
    "submit": {"jobs.slurm.submission._submit"},
    "code": {"jobs.slurm.snapshot._take"},
    "doctor": {"jobs.doctor.of_node", "jobs.doctor._held", "jobs.slurm.probe.holds_apart", "jobs.slurm.probe.main"},
    "lab": {"instruments.lab.run"},
    WHOLE: {"analysis.figures.to_files"}
    | {"downstream.finetune._save", "jobs.slurm.staging._copy"}
    | {f"models.{kind}._write" for kind in ("experts", "lora", "progressive")},
}
