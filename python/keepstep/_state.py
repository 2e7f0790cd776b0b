"""What a build function returns: the objects of a training run, by name. Free of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keepstep._errors import KeepstepError


class State:
    """The objects that training changes: ``keepstep.State(model=model, optimizer=optimizer)``.

    `run.setup` protects every field under its name: a replacement receives it from its peers, and checkpoints contain
    it. A field is a module, an optimizer, a schedule, a scaler, a tensor, a dict of tensors, or any object with
    ``state_dict()`` and ``load_state_dict()``. Fields are read-only attributes: ``state.model``.

    Raises:
        KeepstepError: a field's name cannot be used.
    """

    def __init__(self, /, **fields: Any) -> None:
        self.__dict__["_protected"] = tuple(fields)
        self._take(fields)

    def with_unprotected(self, /, **objects: Any) -> State:
        """The same state with more attributes that every process builds for itself: data sets, tokenizers, meshes.

        They are built once per process, and neither sent to a replacement nor saved.
        """
        self._take(objects)
        return self

    def _take(self, objects: dict[str, Any]) -> None:
        for name, item in objects.items():
            if name in self.__dict__:
                raise KeepstepError(f"keepstep.State: two objects are named '{name}'")
            if name.startswith("_") or hasattr(State, name) or not name.isidentifier():
                raise KeepstepError(f"keepstep.State: '{name}' cannot be the name of a field")
            self.__dict__[name] = item

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __setattr__(self, name: str, value: Any) -> None:
        raise KeepstepError(
            f"state.{name}: the fields of a State stay as build() made them, the same in all processes; "
            "change the object itself, or return it from build()"
        )

    def __delattr__(self, name: str) -> None:
        self.__setattr__(name, None)

    def __repr__(self) -> str:
        parts = [
            f"{name}={type(item).__name__}{'' if name in self._protected else ' (unprotected)'}"
            for name, item in self.__dict__.items()
            if name != "_protected"
        ]
        return f"State({', '.join(parts)})"


def protected_fields(state: State) -> dict[str, Any]:
    """The protected fields of `state`, in their order."""
    return {name: state.__dict__[name] for name in state._protected}
