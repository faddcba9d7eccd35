"""The hash model in OpenCL C: the same tokens from a real driver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyopencl
from async_orch_backends.opencl import NDRange

from async_orch import Device, StepProgram
from async_orch.abc import Buffer, Stream
from tests.serve.hash_model import HashDecode, HashModel, HashPrefill, HashProgram

__all__ = ["HashModelOpenCL"]

SOURCE = """
int chosen(global const int *kv, global const int *table, int size, int length) {
    ulong sum = 0, weight = 1;
    for (int i = 0; i < length; ++i) {
        weight *= 6364136223846793005UL;
        sum += (ulong)kv[table[i / size] * size + i % size] * weight;
    }
    return (int)(((sum ^ (ulong)length) >> 17) % 96);
}

// Work that takes time and changes nothing: a device is not as fast as this model.
void spin(int rounds) {
    volatile uint x = 1;
    for (int i = 0; i < rounds; ++i) x = x * 1664525u + 1013904223u;
}

kernel void prefill(global const int *image, global const int *feed, global int *kv, global int *state,
                    global int *output, int row_width, int width, int size, int rounds) {
    int place = get_global_id(0);
    global const int *data = image + place * row_width, *table = data + 4, *tokens = table + width;
    int start = data[1], length = data[2];
    for (int i = 0; i < length; ++i) kv[table[(start + i) / size] * size + (start + i) % size] = tokens[i];
    int token = data[3] ? chosen(kv, table, size, start + length) : -1;
    output[place] = state[data[0]] = token;
    if (place == 0) spin(rounds);
}

kernel void decode(global const int *image, global const int *feed, global int *kv, global int *state,
                   global int *output, int row_width, int width, int size, int rounds) {
    int place = get_global_id(0);
    global const int *data = image + place * row_width, *table = data + 3;
    int row = data[0], position = data[1], token = data[2];
    if (token == -1) token = state[row];
    if (token == -2) token = feed[place];
    kv[table[position / size] * size + position % size] = token;
    output[place] = state[row] = chosen(kv, table, size, position + 1);
    if (place == 0) spin(rounds);
}
"""


_NUMBERS = 4  # at the end of a kernel's arguments


class HashModelOpenCL(HashModel):
    """A `HashModel` for the backend ``opencl``. ``rounds`` of a loop make each step take longer."""

    def __init__(self, *, rounds: int = 0, **sizes: Any) -> None:
        self.rounds = rounds
        self.kernels: dict[str, Any] = {}
        super().__init__(**sizes)

    def make_programs(self) -> dict[str, StepProgram[Any, Any]]:
        return {"prefill": OpenCLPrefill(self), "decode": OpenCLDecode(self)}

    def open(self, device: Device) -> None:
        super().open(device)
        stream: Any = device.compute_stream
        built = pyopencl.Program(stream.context, SOURCE).build()
        self.kernels = {name: pyopencl.Kernel(built, name) for name in ("prefill", "decode")}
        for kernel in self.kernels.values():
            kernel.set_scalar_arg_dtypes([None] * (kernel.num_args - _NUMBERS) + [np.int32] * _NUMBERS)


def enqueue(program: HashProgram, name: str, stream: Stream, count: int, memory: tuple[Buffer, ...]) -> None:
    """A work-item for each sequence; a group each, so that they need not wait for each other."""
    model = program.model
    assert isinstance(model, HashModelOpenCL)
    numbers = (program.row_width, model.width, model.limits.block_size, model.rounds)
    stream.launch(NDRange(model.kernels[name], (count,), (1,)), *memory, *map(np.int32, numbers))


class OpenCLPrefill(HashPrefill):
    """Prompts, on the driver's device."""

    def enqueue(self, stream: Stream, count: int, *memory: Buffer) -> None:
        enqueue(self, "prefill", stream, count, memory)


class OpenCLDecode(HashDecode):
    """Next tokens, on the driver's device."""

    def enqueue(self, stream: Stream, count: int, *memory: Buffer) -> None:
        enqueue(self, "decode", stream, count, memory)
