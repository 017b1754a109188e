"""A suite's stream as a data set that others can read: its documents as JSON Lines, and a card in Croissant's format.

Croissant (Akhtar et al. 2024, arXiv 2403.19546) describes data sets in JSON-LD: files with their hashes, and where in
them the records are.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmark.data import corpus, docstrings
from benchmark.files import whole_folder, write_json
from benchmark.settings.base import ConfigError
from benchmark.settings.suite import Domain, Suite

FILE = "croissant.json"
SPLITS = ("train", "valid")
TERMS = """citeAs column equivalentProperty extract field fileObject fileProperty fileSet format includes isLiveDataset
jsonPath key md5 parentField path recordSet references regex repeated replace samplingRate separator source subField
transform"""
CONTEXT = {  # all of the format's, though few are used: readers expect that
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "data": {"@id": "cr:data", "@type": "@json"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{term: f"cr:{term}" for term in TERMS.split()},
}


def write_stream(suite: Suite, out: Path) -> list[str]:
    """Write the documents of a suite's domains and probes to the new folder `out`, with a card; a line for each file.

    A document is training or validation text as it is for the suite's runs. What `max_train_tokens` and
    `max_valid_tokens` would leave out is written too. Raises ConfigError, DataError; then nothing is written.
    """
    if out.exists():
        raise ConfigError(f"{out} exists already: name a new folder")
    with whole_folder(out) as folder:
        files = [file for text in (*suite.domains, *suite.probes) for file in _write(text, suite, folder)]
        write_json(folder / FILE, _card(suite, files), indent=2)
    return [f"{out / file['contentUrl']}: {file['documents']:,} documents" for file in files]


def _write(domain: Domain, suite: Suite, folder: Path) -> Iterator[dict[str, Any]]:
    """Write a domain's two files; yields what the card says of each."""
    (folder / domain.name).mkdir()
    documents: Counter[str] = Counter()
    hashes = {split: hashlib.sha256() for split in SPLITS}
    with ExitStack() as stack:
        files = {split: stack.enter_context((folder / _file(domain, split)).open("wb")) for split in SPLITS}
        for document in corpus.read(domain, suite.data.valid_share, Counter()):
            line = json.dumps({"text": document.text}, ensure_ascii=False).encode() + b"\n"
            files[document.split].write(line)
            hashes[document.split].update(line)
            documents[document.split] += 1
    for split in SPLITS:
        hashed = hashes[split].hexdigest()
        yield {"contentUrl": _file(domain, split), "sha256": hashed, "documents": documents[split]}


def _file(domain: Domain, split: str) -> str:
    return f"{domain.name}/{split}.jsonl"


def _card(suite: Suite, files: list[dict[str, Any]]) -> dict[str, Any]:
    order = ", ".join(domain.label for domain in suite.domains)
    licenses = [docstrings.licenses(domain.packages) for domain in (*suite.domains, *suite.probes)]
    known = sorted({license for found in licenses for license in found.values()})
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": suite.name,
        "description": f"{suite.title}: a stream of domains, in this order: {order}.",
        "license": known if known and all(licenses) else "unknown",
        "version": "1.0.0",
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": file["contentUrl"],
                "name": file["contentUrl"],
                "contentUrl": file["contentUrl"],
                "encodingFormat": "application/jsonlines",
                "sha256": file["sha256"],
            }
            for file in files
        ],
        "recordSet": [_record_set(file["contentUrl"]) for file in files],
    }


def _record_set(file: str) -> dict[str, Any]:
    """The documents of a file; domain and split are in its name."""
    name = file.removesuffix(".jsonl")
    source = {"fileObject": {"@id": file}, "extract": {"column": "text"}}
    field = {
        "@type": "cr:Field",
        "@id": f"{name}/text",
        "name": f"{name}/text",
        "dataType": "sc:Text",
        "source": source,
    }
    return {"@type": "cr:RecordSet", "@id": name, "name": name, "field": [field]}
