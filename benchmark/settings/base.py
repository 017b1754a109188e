"""The base of everything that a suite can say."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Frozen; a key that it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
