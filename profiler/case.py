"""What a kernel microbenchmark is asked: one layer call under one execution."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oracle.execution import Execution
from oracle.layer import Phase
from oracle.layers import layer_from_dict
from oracle.pricing import LayerCall


@dataclass(frozen=True)
class Case:
    """One layer call under one execution."""

    call: LayerCall
    execution: Execution

    @property
    def execution_key(self) -> str:
        """What of the execution this phase's kernels depend on."""
        update = self.call.phase is Phase.UPDATE
        return self.execution.update_key if update else self.execution.kernel_key

    @property
    def micro(self) -> str:
        """The microbenchmark that measures it."""
        return "optimizer" if self.call.phase is Phase.UPDATE else self.call.layer.kind

    @property
    def key(self) -> str:
        """One text for equal cases: the `case_key` of its measurements."""
        case = json.dumps(self.to_dict(), sort_keys=True)
        return f"{self.micro}/{self.call.phase}/{self.execution_key}/{case}"

    def to_dict(self) -> dict[str, Any]:
        """The `case` of a `Measurement`: plain JSON values."""
        return {"layer": self.call.layer.to_dict(), "samples": self.call.samples}


def call_from_case(case: Mapping[str, Any], phase: str) -> LayerCall:
    """The layer call that a kernel measurement's `case` and `phase` describe.

    Raises:
        BadInput: the case describes no layer.
    """
    return LayerCall(layer_from_dict(case["layer"]), Phase(phase), int(case["samples"]))
