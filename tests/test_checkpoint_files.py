"""The reader of safetensors files: every type, and every way in which a file can be broken."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from checkpoints import header, raw, write_directory, write_file
from jax_megamoe.checkpoint import Checkpoint
from jax_megamoe.checkpoint.safetensors_file import SafetensorsFile

RNG = np.random.default_rng(0)
ARRAYS = {
    "BOOL": RNG.integers(0, 2, (3, 4)).astype(bool),
    "U8": RNG.integers(0, 256, (3, 4), np.uint8),
    "I8": RNG.integers(-128, 128, (3, 4), np.int8),
    "I16": RNG.integers(-9, 9, (3, 4)).astype(np.int16),
    "U16": RNG.integers(0, 9, (3, 4)).astype(np.uint16),
    "I32": RNG.integers(-9, 9, (3, 4)).astype(np.int32),
    "U32": RNG.integers(0, 9, (3, 4)).astype(np.uint32),
    "I64": RNG.integers(-9, 9, (3, 4)),
    "U64": RNG.integers(0, 9, (3, 4)).astype(np.uint64),
    "F16": RNG.standard_normal((3, 4)).astype(np.float16),
    "BF16": RNG.standard_normal((3, 4)).astype(ml_dtypes.bfloat16),
    "F32": RNG.standard_normal((3, 4)).astype(np.float32),
    "F64": RNG.standard_normal((3, 4)),
    "F8_E4M3": RNG.integers(0, 256, (3, 4), np.uint8).view(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": RNG.integers(0, 256, (3, 4), np.uint8).view(ml_dtypes.float8_e5m2),
    "F8_E8M0": RNG.integers(0, 256, (3, 4), np.uint8).view(ml_dtypes.float8_e8m0fnu),
}


@pytest.mark.parametrize("dtype", ARRAYS)
def test_each_type_is_read_whole_and_by_expert(tmp_path, dtype):
    array = ARRAYS[dtype]
    other = raw(np.arange(7, dtype=np.int8))  # odd, so that what follows is not aligned
    write_file(tmp_path / "a.safetensors", {"other": other, "x": raw(array, dtype)})
    file = SafetensorsFile(tmp_path / "a.safetensors")
    for got, wanted in ((file.read("x"), array), (file.read("x", expert=1), array[1])):
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        assert got.tobytes() == wanted.tobytes()


def test_fp4_is_read_as_bytes(tmp_path):
    packed = RNG.integers(-128, 128, (2, 5), np.int8)
    write_file(tmp_path / "a.safetensors", {"x": ("F4", (2, 10), packed.tobytes())})
    file = SafetensorsFile(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(file.read("x"), packed)
    np.testing.assert_array_equal(file.read("x", expert=1), packed[1])


def test_a_file_of_the_library_is_read(tmp_path):
    arrays = {name: ARRAYS[name] for name in ("U8", "I8", "BF16", "F32", "I64")}
    safetensors.numpy.save_file(arrays, tmp_path / "a.safetensors", metadata={"format": "np"})
    with Checkpoint(tmp_path) as checkpoint:
        assert sorted(checkpoint.names()) == sorted(arrays)
        for name, array in arrays.items():
            assert checkpoint.read(name).tobytes() == array.tobytes()


def test_empty_tensors_and_empty_files_are_read(tmp_path):
    write_file(tmp_path / "a.safetensors", {"x": ("F8_E8M0", (0, 4), b"")})
    assert SafetensorsFile(tmp_path / "a.safetensors").read("x").shape == (0, 4)
    write_file(tmp_path / "b.safetensors", {})
    assert SafetensorsFile(tmp_path / "b.safetensors").tensors == {}


TENSORS = {"first": raw(np.arange(8, dtype=np.int8)), "second": raw(np.ones((2, 3), np.float32))}


def changed(name, **changes):
    entries = header(TENSORS)
    entries[name] = {**entries[name], **changes}
    return json.dumps(entries)


def without(name, key):
    entries = header(TENSORS)
    del entries[name][key]
    return json.dumps(entries)


BROKEN_HEADERS = {
    "offsets beyond the file": (
        changed("second", data_offsets=[8, 1000], shape=[992], dtype="I8"),
        "truncated",
    ),
    "more elements than bytes": (changed("second", shape=[2, 300]), "takes 2400 bytes"),
    "another type": (changed("first", dtype="F32"), "takes 32 bytes"),
    "unknown type": (changed("first", dtype="F3"), "unknown dtype 'F3'"),
    "type that is no string": (changed("first", dtype=["F32"]), "unknown dtype"),
    "negative shape": (changed("second", shape=[-2, -3]), "shape [-2, -3]"),
    "shape that overflows 64 bits": (changed("second", shape=[2**40, 2**40]), "takes"),
    "shape of floats": (changed("second", shape=[2.0, 3.0]), "shape [2.0, 3.0]"),
    "shape of booleans": (changed("second", shape=[True, 6]), "shape [True, 6]"),
    "offsets backwards": (changed("second", data_offsets=[32, 8]), "takes 24 bytes"),
    "negative offsets": (changed("first", data_offsets=[-8, 0]), "data_offsets [-8, 0]"),
    "overlap": (changed("second", data_offsets=[4, 28]), "begins at byte"),
    "hole": (changed("second", data_offsets=[12, 36]), "truncated"),
    "no dtype": (without("second", "dtype"), "without dtype"),
    "no offsets": (without("second", "data_offsets"), "without dtype"),
    "three offsets": (changed("second", data_offsets=[8, 32, 40]), "without dtype"),
    "entry that is a number": (json.dumps({**header(TENSORS), "second": 7}), "without dtype"),
    "a list": ("[1, 2]", "JSON list"),
    "no JSON": ("{'first': 1}", "is no JSON"),
    "no UTF-8": (b"\xff\xfe", "is no JSON"),
    "deeply nested": ("[" * 100000, "is no JSON"),
    "one name twice": ('{"first": 1, "first": 2}', "appears twice"),
}


@pytest.mark.parametrize("case", BROKEN_HEADERS)
def test_a_header_that_lies_is_refused_with_tensor_and_file(tmp_path, case):
    text, words = BROKEN_HEADERS[case]
    text = text if isinstance(text, bytes) else text.encode()
    data = b"".join(data for _, _, data in TENSORS.values())
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    with pytest.raises(ValueError) as error:
        SafetensorsFile(path)
    assert str(path) in str(error.value) and words in str(error.value)
    for name in TENSORS:
        if name in case:
            assert name in str(error.value)


@pytest.mark.parametrize("length", [0, 5, 8, 30, -1, -20])
def test_a_truncated_file_is_refused(tmp_path, length):
    path = tmp_path / "a.safetensors"
    write_file(path, TENSORS)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ValueError, match="not a sound safetensors file") as error:
        SafetensorsFile(path)
    assert str(path) in str(error.value)
    if length < 0:
        assert "second" in str(error.value)  # the tensor that is cut


def test_bytes_after_the_last_tensor_are_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    write_file(path, TENSORS)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(ValueError, match="the last in it"):
        SafetensorsFile(path)


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 10**9])
def test_a_header_length_beyond_the_file_is_refused(tmp_path, length):
    path = tmp_path / "a.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + b"{}")
    with pytest.raises(ValueError, match="header is said to take"):
        SafetensorsFile(path)


def test_a_missing_shard_is_refused_with_the_tensor_it_should_hold(tmp_path):
    write_directory(tmp_path, TENSORS)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with Checkpoint(tmp_path) as checkpoint:
        checkpoint.read("first")
        with pytest.raises(
            ValueError, match=r"model-00002-of-00002.safetensors is missing.*second"
        ):
            checkpoint.read("second")


def test_a_shard_without_a_tensor_that_the_index_puts_there_is_refused(tmp_path):
    write_directory(tmp_path, TENSORS)
    write_file(tmp_path / "model-00002-of-00002.safetensors", {"third": TENSORS["second"]})
    with (
        Checkpoint(tmp_path) as checkpoint,
        pytest.raises(ValueError, match=r"does not hold the tensor second"),
    ):
        checkpoint.read("second")


@pytest.mark.parametrize(
    "content, words",
    [
        ("{", "cannot be read as JSON"),
        ("[]", "JSON list"),
        ("{}", "weight_map"),
        ('{"weight_map": {}}', "weight_map"),
        ('{"weight_map": {"x": "../secret.safetensors"}}', "same directory"),
        ('{"weight_map": {"x": "/etc/passwd"}}', "same directory"),
        ('{"weight_map": {"x": 3}}', "same directory"),
    ],
)
def test_a_broken_index_is_refused(tmp_path, content, words):
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ValueError, match=words) as error:
        Checkpoint(tmp_path)
    assert "model.safetensors.index.json" in str(error.value)


def test_paths_that_are_no_checkpoint_are_refused(tmp_path):
    with pytest.raises(ValueError, match="nothing is there"):
        Checkpoint(tmp_path / "absent")
    with pytest.raises(ValueError, match=r"no .safetensors file at all"):
        Checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ValueError, match="converted to safetensors"):
        Checkpoint(tmp_path / "pytorch_model.bin")
    for name in ("a", "b"):
        write_file(tmp_path / f"{name}.safetensors", TENSORS)
    with pytest.raises(ValueError, match=r"2 .safetensors files without it"):
        Checkpoint(tmp_path)


def test_two_checkpoints_in_one_directory_are_refused(tmp_path):
    write_directory(tmp_path, TENSORS)
    write_file(tmp_path / "model.safetensors", TENSORS)
    with pytest.raises(ValueError, match="two checkpoints"):
        Checkpoint(tmp_path)
    with Checkpoint(tmp_path / "model.safetensors") as checkpoint:
        assert checkpoint.file_of("first").name == "model.safetensors"
    with Checkpoint(tmp_path / "model.safetensors.index.json") as checkpoint:
        assert checkpoint.file_of("first").name == "model-00001-of-00002.safetensors"
