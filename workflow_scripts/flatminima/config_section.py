"""The base class of configuration sections: unknown keys are refused and types are strict.

``config.loading`` makes one line of a mistake.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from flatminima.errors import suggest

Mistakes = Iterator[tuple[str, str]]  # key below the section, and what is wrong with it
# Limits of numbers. A larger number is a slip, and would not fit into float32 or a run.
LARGEST_COUNT = 10**9
LARGEST_FACTOR = 1e6
Count = Annotated[int, Field(ge=1, le=LARGEST_COUNT)]
Factor = Annotated[float, Field(gt=0, le=LARGEST_FACTOR)]
DECIDING = ("source", "kind")  # keys that decide the class of a section


def key(description: str, default: Any = ..., **limits: Any) -> Any:
    """A key of the configuration. It is required unless it has a default.

    The default ``None`` means that the key may be left out, not that it may be null.
    """
    return Field(default, description=description, **limits)


def _mistake(place: str, text: str) -> PydanticCustomError:
    # The text is in the context because pydantic would format braces in a template.
    return PydanticCustomError("mistake", "{text}", {"key": place, "text": text})


class Section(BaseModel):
    """A mapping of the configuration. Types are not converted: 2.0 is not a whole number."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    def _mistakes(self) -> Mistakes:
        """Yield mistakes that involve several keys. Only the first one is reported.

        Subclasses may rely on this: after a ``yield`` they need not guard against the mistake.
        """
        yield from ()

    def dump(self, **which: Any) -> dict:
        """The section as a mapping for a job: with defaults, without keys that are ``None``.

        ``which`` is ``include`` or ``exclude``, as in ``model_dump``.
        """
        return self.model_dump(exclude_none=True, **which)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, section: Any) -> Any:
        """Runs before pydantic's checks: a misspelt key is the reason why another is missing."""
        if isinstance(section, Mapping):
            unknown_keys = [str(name) for name in section if name not in cls.model_fields]
            if unknown_keys:
                hint = suggest(unknown_keys[0], sorted(cls.model_fields))
                raise _mistake(unknown_keys[0], f"is not known; {hint}")
        return section

    @model_validator(mode="after")
    def _refuse_mistakes(self) -> Self:
        first_mistake = next(iter(self._mistakes()), None)
        if first_mistake is not None:
            raise _mistake(*first_mistake)
        return self
