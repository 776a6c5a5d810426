"""The parameters of one quantization, for its process and for a resumed one to compare."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from weights.quantize.method_options import OptionValue


@dataclass(frozen=True)
class QuantizeJob:
    source: str
    """A model's folder, a GGUF file, or a Hugging Face id."""
    revision: str | None
    scheme: str
    group_size: int | None
    tensor_parallel: int
    calibration: str | None
    samples: int
    sample_tokens: int
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    """Settings of `weights.quantize.method_options`. Missing ones have their defaults."""

    @property
    def gguf(self) -> bool:
        return self.source.endswith(".gguf")

    @property
    def local(self) -> bool:
        return Path(self.source).exists()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))

    def digest(self) -> str:
        """Return a digest that changes with the job, the calibration text and the model's files."""
        found = hashlib.sha256(self.to_json().encode())
        if self.calibration is not None:
            found.update(Path(self.calibration).read_bytes())
        if self.local:
            source = Path(self.source)
            files = [source] if source.is_file() else sorted(source.iterdir())
            # Times and sizes, because reading hundreds of gigabytes would cost more than it saves.
            for file in (f for f in files if f.suffix in (".gguf", ".safetensors", ".json")):
                seen = file.stat()
                found.update(f"{file.name} {seen.st_size} {seen.st_mtime_ns}".encode())
        return found.hexdigest()
