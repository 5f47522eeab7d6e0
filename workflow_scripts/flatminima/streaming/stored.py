"""A checkpoint whose weights stay in its files and are read as float32 when they are needed."""

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn

from flatminima.checkpoints import (
    INDEX_SUFFIX,
    WEIGHTS_FILE,
    count_not_finite,
    damage_named,
    hide_progress_bars,
    is_legacy_buffer,
)
from flatminima.errors import DamagedFile
from flatminima.files import check_digest
from flatminima.revisions.absent import absence
from flatminima.streaming.places import find_places, read_ahead

READ_AT_ONCE = 2**26  # bytes in float32


class CannotStream(Exception):
    """A model that cannot be run layer by layer, with the reason in one line."""


def skeleton(folder: str | Path) -> nn.Module:
    """The model of a checkpoint without memory for its weights; its buffers are there."""
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM

    with damage_named(folder):
        check_digest(Path(folder) / "config.json")
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        with init_empty_weights():
            model = AutoModelForCausalLM.from_config(
                config, dtype=torch.float32, trust_remote_code=False
            )
    model.tie_weights()
    return model.eval()


class StoredModel:
    """The ``model`` of a checkpoint folder, none of whose weights are in memory.

    ``loaded`` puts some there for a while; ``names`` are those of all parameters, shared
    ones once. Raises ``DamagedFile`` for a file that is not as it was written and
    ``CannotStream`` where what files hold is not known for each parameter.
    """

    def __init__(self, folder: str | Path, device: str = "cpu") -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping

        self.folder, self.device = Path(folder), device
        weights = self.folder / WEIGHTS_FILE
        reason = absence(weights)
        if reason is not None:
            raise DamagedFile(f"{folder}: there is no such checkpoint ({reason})")
        hide_progress_bars()
        self.model = skeleton(folder)
        for module in self.model.modules():
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.to(device)
        index = self.folder / f"{WEIGHTS_FILE}{INDEX_SUFFIX}"
        with damage_named(folder):
            self._places = find_places(index if index.exists() else weights)
        self._own = dict(self.model.named_parameters())
        aliases: dict[int, list[str]] = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            aliases.setdefault(id(parameter), []).append(name)
        self._aliases = {name: aliases[id(p)] for name, p in self._own.items()}
        self._conversions = get_model_conversion_mapping(self.model)
        self._stored = self._match()
        self._ahead = ThreadPoolExecutor(1)

    @property
    def names(self) -> list[str]:
        """Names of all parameters, shared ones by their first."""
        return list(self._own)

    def names_under(self, module: nn.Module | None) -> list[str]:
        """Names of the parameters that a module holds, shared ones by their first."""
        inside = set() if module is None else set(module.modules())
        owner = self.model.get_submodule
        return [
            name
            for name, aliases in self._aliases.items()
            if any(owner(alias.rpartition(".")[0]) in inside for alias in aliases)
        ]

    def _match(self) -> dict[str, list[str]]:
        """The stored names behind each parameter, by the conversions that transformers makes."""
        from transformers.core_model_loading import (
            WeightConverter,
            WeightRenaming,
            rename_source_key,
        )

        renamings = [c for c in self._conversions if isinstance(c, WeightRenaming)]
        converters = [c for c in self._conversions if isinstance(c, WeightConverter)]
        expected = self.model.state_dict()
        first = {alias: name for name, aliases in self._aliases.items() for alias in aliases}
        found: dict[str, list[str]] = {}
        for stored in self._places:
            name, pattern = rename_source_key(
                stored, renamings, converters, self.model.base_model_prefix, expected
            )
            if name not in first and stored in first:
                name, pattern = stored, None
            if name not in first:
                if is_legacy_buffer(stored):
                    continue
                raise CannotStream(f"{self.folder} holds {stored}, which the model does not")
            if pattern is None:
                self._check_shape(stored, self._own[first[name]])
            found.setdefault(first[name], []).append(stored)
        missing = self._own.keys() - found.keys()
        if missing:
            raise CannotStream(f"nothing in {self.folder} is called like {min(missing)}")
        return found

    def _check_shape(self, stored: str, parameter: nn.Parameter) -> None:
        shape = list(self._places[stored].shape)
        if shape != list(parameter.shape):
            expected = list(parameter.shape)
            raise DamagedFile(
                f"{self.folder}: {stored} has shape {shape}; the model's is {expected}"
            )

    def expect(self, names: Iterable[str]) -> None:
        """Let the system read weights that are wanted soon, while other things are done."""
        if hasattr(os, "posix_fadvise"):
            places = [self._places[stored] for name in names for stored in self._stored[name]]
            self._ahead.submit(read_ahead, places)

    @contextmanager
    def loaded(self, names: Iterable[str]) -> Iterator[None]:
        """The model with these weights in memory, which they leave afterwards."""
        names = list(names)
        try:
            for part in self._parts(names):
                with damage_named(self.folder):
                    self._read(part)
                for name in part:
                    self._take(name)
            yield
        finally:
            for name in names:
                self._put(name, self._own[name])

    def _parts(self, names: list[str]) -> Iterator[list[str]]:
        """The names in parts that are read together, for little stands in memory twice."""
        part: list[str] = []
        for name in names:
            if sum(4 * self._own[n].numel() for n in [*part, name]) > READ_AT_ONCE and part:
                yield part
                part = []
            part.append(name)
        if part:
            yield part

    def _read(self, names: list[str]) -> None:
        """Load as transformers does, from files that are closed again.

        What was read of a file counts as memory until it is closed.
        """
        from transformers.core_model_loading import convert_and_load_state_dict_in_model
        from transformers.modeling_utils import LoadStateDictConfig

        wanted = [stored for name in names for stored in self._stored[name]]
        how = LoadStateDictConfig(
            dtype=torch.float32, device_map={"": self.device}, weight_mapping=self._conversions
        )
        with ExitStack() as stack:
            files = {
                file: stack.enter_context(safe_open(file, framework="pt"))
                for file in {self._places[stored].file for stored in wanted}
            }
            slices = {s: files[self._places[s].file].get_slice(s) for s in wanted}
            convert_and_load_state_dict_in_model(self.model, slices, how)

    def _take(self, name: str) -> None:
        """Check a weight that was read and give it to all its names."""
        read = next(
            (p for alias in self._aliases[name] if not (p := self._get(alias)).is_meta), None
        )
        if read is None or read.shape != self._own[name].shape:
            raise CannotStream(f"{name} is stored in a way that cannot be read by itself")
        count = count_not_finite(read)
        if count:
            raise DamagedFile(f"{self.folder}: {count} of {read.numel()} {name} are not finite")
        self._put(name, nn.Parameter(read.detach(), requires_grad=False))

    def _get(self, name: str) -> nn.Parameter:
        path, _, attribute = name.rpartition(".")
        return self.model.get_submodule(path)._parameters[attribute]

    def _put(self, name: str, parameter: nn.Parameter) -> None:
        for alias in self._aliases[name]:
            path, _, attribute = alias.rpartition(".")
            self.model.get_submodule(path)._parameters[attribute] = parameter
