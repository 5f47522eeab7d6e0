"""A section of the configuration: closed, strict, and refused in words that name the key.

``config.loading`` makes one line of them.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from flatminima.errors import suggest

Mistakes = Iterator[tuple[str, str]]  # key below the section, and what is wrong with it
# What a number may be at most. Larger ones are slips, and would not fit float32 or a run.
LARGEST_COUNT = 10**9
LARGEST_FACTOR = 1e6
Count = Annotated[int, Field(ge=1, le=LARGEST_COUNT)]
Factor = Annotated[float, Field(gt=0, le=LARGEST_FACTOR)]
DECIDING = ("source", "kind")  # keys that say which of several classes a section is


def key(description: str, default: Any = ..., **limits: Any) -> Any:
    """A key of the configuration; one without a default is needed.

    A default of ``None`` says that the key may be left out, not that it may be null.
    """
    return Field(default, description=description, **limits)


def _mistake(place: str, text: str) -> PydanticCustomError:
    # Given as a value of the context, since text may have braces.
    return PydanticCustomError("mistake", "{text}", {"key": place, "text": text})


class Section(BaseModel):
    """A mapping of the configuration. Numbers are not converted: 2.0 is no whole number."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    def _mistakes(self) -> Mistakes:
        """Keys that do not go with each other; the first mistake is told and ends the check."""
        yield from ()

    def dump(self, **which: Any) -> dict:
        """The section as a mapping for a job: its defaults are in it, keys left out are not.

        ``which`` is ``include`` or ``exclude``, as in ``model_dump``.
        """
        return self.model_dump(exclude_none=True, **which)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        """First of all, since a key that is not known explains what is missing."""
        for name in given if isinstance(given, Mapping) else ():
            if name not in cls.model_fields:
                hint = suggest(str(name), sorted(cls.model_fields))
                raise _mistake(str(name), f"is not known; {hint}")
        return given

    @model_validator(mode="after")
    def _without_mistakes(self) -> Self:
        for place, text in self._mistakes():
            raise _mistake(place, text)
        return self
