"""What goes wrong with the hub, in one line that names repository and revision."""

from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import constants
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from flatminima.errors import UserError
from flatminima.hub.retrying import BrokenOff, describe_error


class HubError(UserError):
    """A revision could not be fetched, or what was fetched cannot be trusted."""


class RevisionMissing(HubError):
    """The hub does not have this revision, or nothing that can be loaded in it.

    ``reason`` says which, without the name of the repository.
    """

    def __init__(self, repo: str, revision: str, reason: str) -> None:
        super().__init__(f"{repo} at {revision}: {reason}")
        self.reason = reason


@contextmanager
def one_line(repo: str, revision: str) -> Iterator[None]:
    """Turn errors of the hub's client and of the disk into one line that says which revision."""
    at, hub = f"{repo} at {revision}", constants.ENDPOINT
    try:
        yield
    except RevisionNotFoundError as error:
        raise RevisionMissing(repo, revision, "the hub has no such revision") from error
    except EntryNotFoundError as error:
        reason = f"a file that it lists is not there ({describe_error(error)})"
        raise RevisionMissing(repo, revision, reason) from error
    except GatedRepoError as error:
        raise HubError(
            f"{at}: the repository is gated; accept its terms at {hub}/{repo} and set HF_TOKEN "
            "to a token of that account"
        ) from error
    except RepositoryNotFoundError as error:
        raise HubError(
            f"{at}: {hub} has no such repository, or it is private and HF_TOKEN does not open it"
        ) from error
    except (HTTPError, BrokenOff) as error:
        raise HubError(f"{at}: {describe_error(error)}") from error
    except OSError as error:
        raise HubError(f"{at}: {error}") from error
