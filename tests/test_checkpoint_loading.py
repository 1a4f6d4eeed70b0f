"""Where loaded experts go, what is read for them, and what it costs; and the way back to files."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import socket
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_megamoe as jm
from checkpoints import (
    deepseek,
    deepseek_config,
    experts,
    finite_scales,
    gpt_oss,
    gpt_oss_config,
    hugging_face,
    loaded,
    raw,
    same_bits,
    write_directory,
    write_file,
)
from jax_megamoe.checkpoint import (
    Checkpoint,
    load_all_experts,
    load_config,
    load_experts,
    loading,
    save_experts,
)

EIGHT = experts(num=8)
BIASED = experts(num=8, bias=jnp.bfloat16)


# ---- placement


def test_each_device_holds_its_own_experts(tmp_path):
    write_directory(tmp_path, deepseek(EIGHT), deepseek_config(EIGHT))
    mesh = jax.make_mesh((4,), ("ep",), devices=jax.devices()[:4])
    got = load_experts(tmp_path, 0, mesh=mesh)
    assert got.gate_up_proj.sharding == NamedSharding(mesh, P("ep"))
    whole = load_experts(tmp_path, 0)
    for name in ("gate_up_proj", "down_proj_scale_inv"):
        for shard in getattr(got, name).addressable_shards:
            rank = list(mesh.devices).index(shard.device)
            wanted = getattr(whole, name)[2 * rank : 2 * rank + 2]
            np.testing.assert_array_equal(np.asarray(shard.data), np.asarray(wanted))
    assert same_bits(jm.unprepare_weights(got), EIGHT)


@pytest.mark.parametrize(
    "kind, shape, axes",
    [(AxisType.Auto, (4, 2), ("ep", "data")), (AxisType.Explicit, (2, 4), ("data", "ep"))],
)
def test_other_axes_hold_copies_and_each_expert_is_read_once(
    tmp_path, monkeypatch, kind, shape, axes
):
    write_directory(tmp_path, gpt_oss(BIASED), gpt_oss_config(BIASED))
    read = []
    original = loading.LayerReader.read
    monkeypatch.setattr(
        loading.LayerReader, "read", lambda self, e: (read.append(e), original(self, e))[1]
    )
    mesh = jax.make_mesh(shape, axes, axis_types=(kind,) * 2)
    with jax.set_mesh(mesh):
        got = load_experts(tmp_path, 0)
    assert sorted(read) == list(range(8))
    assert same_bits(jm.unprepare_weights(got), BIASED)
    assert len(got.down_proj.addressable_shards) == 8


def test_an_axis_of_several_mesh_axes(tmp_path):
    write_directory(tmp_path, deepseek(EIGHT), deepseek_config(EIGHT))
    mesh = jax.make_mesh((2, 4), ("a", "b"))
    got = load_experts(tmp_path, 0, mesh=mesh, axis_name=("a", "b"))
    assert got.gate_up_proj.sharding.spec == P(("a", "b"))
    assert same_bits(jm.unprepare_weights(got), EIGHT)


def test_meshes_and_implementations_that_do_not_fit_are_refused(tmp_path):
    six = experts(num=6)
    write_directory(tmp_path, deepseek(six), deepseek_config(six))
    mesh = jax.make_mesh((4,), ("ep",), devices=jax.devices()[:4])
    with pytest.raises(ValueError, match="E = 6 experts do not divide over the 4 ranks"):
        load_experts(tmp_path, 0, mesh=mesh)
    with pytest.raises(ValueError, match="'tp' is not among them"):
        load_experts(tmp_path, 0, mesh=mesh, axis_name="tp")
    with pytest.raises(ValueError, match="implementation is 'tpu'"):
        load_experts(tmp_path, 0, implementation="tpu")
    with pytest.raises(ValueError, match="outside of traces"):
        load_experts(tmp_path, 0, mesh=mesh.abstract_mesh)


def test_an_expert_is_stored_into_the_memory_of_the_result():
    """Without donation there would be two copies of a layer on a device."""
    weights = jax.tree.map(jnp.asarray, experts(num=2))
    one, other = (jax.tree.map(lambda leaf, e=e: leaf[e], weights) for e in range(2))
    arrays = loading._first(one, 3, 64, "cpu")
    before = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(arrays)]
    arrays = loading._store(arrays, other, 5, "cpu")
    after = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(arrays)]
    assert before == after


# ---- what is read


def test_shards_of_other_layers_may_be_missing(tmp_path):
    tensors = {**deepseek(EIGHT, layer=0), **deepseek(EIGHT, layer=1)}
    write_directory(tmp_path, tensors, deepseek_config(EIGHT), shards=1)
    files = {"a.safetensors": 0, "b.safetensors": 1}
    weight_map = {}
    for file, layer in files.items():
        held = {name: value for name, value in tensors.items() if f"layers.{layer}." in name}
        weight_map |= dict.fromkeys(held, file)
        write_file(tmp_path / file, held)
    (tmp_path / "model-00001-of-00001.safetensors").unlink()
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    (tmp_path / "a.safetensors").unlink()
    assert same_bits(loaded(tmp_path, 1), EIGHT)
    with pytest.raises(ValueError, match=r"a.safetensors is missing.*layers.0"):
        load_experts(tmp_path, 0)


PROCESS = """
import sys
import jax
rank, port, path = int(sys.argv[1]), sys.argv[2], sys.argv[3]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{port}", 2, rank)
import numpy as np
import jax_megamoe as jm
from checkpoints import experts
from jax_megamoe.checkpoint import load_experts

mesh = jax.make_mesh((4,), ("ep",))
assert len(mesh.local_devices) == 2
got = load_experts(f"{path}/{rank}", 0, mesh=mesh, implementation="xla")
wanted = experts(num=8)
for name in ("gate_up_proj", "gate_up_proj_scale_inv", "down_proj", "down_proj_scale_inv"):
    for shard in getattr(got, name).addressable_shards:
        data = np.asarray(shard.data)
        np.testing.assert_array_equal(data, getattr(wanted, name)[shard.index].reshape(data.shape))
other = f"{path}/{1 - rank}"
try:
    load_experts(other, 0, mesh=mesh, implementation="xla")
except ValueError as error:
    assert "is missing" in str(error), error
else:
    raise AssertionError("loaded without a file it needs")
print("rank", rank, "ok")
"""


def test_a_process_needs_only_the_files_of_its_own_experts(tmp_path):
    """Two real processes; each has a directory that lacks the other's half of the experts."""
    for rank in range(2):
        path = write_directory(tmp_path / str(rank), deepseek(EIGHT), shards=1)
        (path / "model-00001-of-00001.safetensors").unlink()
        weight_map = {}
        for owner in range(2):
            held = {
                name: value
                for name, value in deepseek(EIGHT).items()
                if int(name.split(".")[4]) // 4 == owner
            }
            weight_map |= dict.fromkeys(held, f"{owner}.safetensors")
            if owner == rank:
                write_file(path / f"{owner}.safetensors", held)
        index = path / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": weight_map}))
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    processes = [
        _start(PROCESS, str(rank), str(port), str(tmp_path), devices=2) for rank in range(2)
    ]
    for rank, process in enumerate(processes):
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0 and f"rank {rank} ok" in output, output


def _start(code, *arguments, devices=1, **options):
    steering = ("JAX_", "XLA_", "TF_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(steering)}
    env |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    env["PYTHONPATH"] = str(Path(__file__).parent)
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, env=env, text=True, **options)


# ---- memory, measured from outside


def sparse_checkpoint(path: Path, tensors: dict[str, tuple[str, tuple[int, ...], int]]) -> int:
    """A file whose tensors are zeros that take no disk; returns their bytes."""
    entries, offset = {}, 0
    for name, (dtype, shape, size) in tensors.items():
        span = [offset, offset + size]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": span}
        offset += size
    text = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset)
    return offset


def deepseek_v4_flash(num):
    """Experts of DeepSeek-V4-Flash's size: 13.4 MB each."""
    hidden, intermediate = 4096, 2048
    return {
        f"layers.0.ffn.experts.{expert}.{matrix}.{end}": (dtype, (n, k), n * k)
        for expert in range(num)
        for matrix, n, k2 in (
            ("w1", intermediate, hidden),
            ("w3", intermediate, hidden),
            ("w2", hidden, intermediate),
        )
        for end, dtype, k in (("weight", "I8", k2 // 2), ("scale", "F8_E8M0", k2 // 32))
    }


def gpt_oss_120b(num):
    """Experts of gpt-oss-120b's size: all experts of a layer in one tensor."""
    size = 2880
    stem = "model.layers.0.mlp.experts."
    fields = {
        "gate_up_proj_blocks": ("U8", (num, 2 * size, size // 32, 16), 1),
        "gate_up_proj_scales": ("U8", (num, 2 * size, size // 32), 1),
        "gate_up_proj_bias": ("BF16", (num, 2 * size), 2),
        "down_proj_blocks": ("U8", (num, size, size // 32, 16), 1),
        "down_proj_scales": ("U8", (num, size, size // 32), 1),
        "down_proj_bias": ("BF16", (num, size), 2),
    }
    return {
        stem + name: (dtype, shape, int(np.prod(shape)) * width)
        for name, (dtype, shape, width) in fields.items()
    }


def bfloat16_experts(num):
    hidden, intermediate = 4096, 2048
    stem = "model.layers.0.mlp.experts."
    shapes = {
        "gate_up_proj": (num, 2 * intermediate, hidden),
        "down_proj": (num, hidden, intermediate),
    }
    return {stem + name: ("BF16", shape, 2 * int(np.prod(shape))) for name, shape in shapes.items()}


MEMORY = """
import sys
import jax
import jax.numpy as jnp
from jax_megamoe.checkpoint import load_experts

jnp.zeros(8).block_until_ready()
print("ready", flush=True)
sys.stdin.readline()
weights = load_experts(sys.argv[1], 0, implementation=sys.argv[2], quantize=True)
jax.block_until_ready(weights)
print("loaded", sum(leaf.nbytes for leaf in jax.tree.leaves(weights)), flush=True)
sys.stdin.readline()
"""

MB = 10**6


@pytest.mark.parametrize(
    "tensors, implementation, least",
    [
        (deepseek_v4_flash(150), "cpu", 2000 * MB),
        (gpt_oss_120b(60), "xla", 700 * MB),
        (bfloat16_experts(14), "cpu", 700 * MB),
    ],
    ids=["deepseek_v4", "gpt_oss", "bfloat16"],
)
def test_a_load_takes_less_than_600_mb_above_its_result(tmp_path, tensors, implementation, least):
    """The largest resident size of another process, mapped pages of files included."""
    path = tmp_path / "model.safetensors"
    assert sparse_checkpoint(path, tensors) >= least
    process = _start(
        MEMORY,
        str(path),
        implementation,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
        before = _peak(process.pid)
        print("go", file=process.stdin, flush=True)
        words = process.stdout.readline().split()
        assert words and words[0] == "loaded", process.communicate()[1]
        above = _peak(process.pid) - before - int(words[1])
        process.communicate("end\n", timeout=60)
    finally:
        process.kill()
    assert above < 600 * MB, f"{above / MB:.0f} MB above the result"


def _peak(pid):
    """Largest resident size so far, as the kernel counts it, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return 1024 * int(line.split()[1])
    raise AssertionError("no VmHWM")


# ---- the progress bar


def test_no_progress_bar_where_standard_error_is_no_terminal(tmp_path, capfd):
    write_directory(tmp_path, deepseek(EIGHT), deepseek_config(EIGHT))
    load_experts(tmp_path, 0)
    load_experts(tmp_path, 0, progress=False)
    assert capfd.readouterr() == ("", "")
    load_experts(tmp_path, 0, progress=True)
    assert "loading experts: 100%" in capfd.readouterr().err


SLOW = """
import sys
import time
from jax_megamoe.checkpoint import load_all_experts, loading
original = loading.LayerReader.read
def slow(self, expert):
    time.sleep(0.2)
    return original(self, expert)
loading.LayerReader.read = slow
load_all_experts(sys.argv[1])
"""


def test_a_progress_bar_for_long_loads_on_a_terminal(tmp_path):
    write_directory(tmp_path, deepseek(EIGHT), deepseek_config(EIGHT))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    seen = bytearray()

    def drain():
        try:
            while data := os.read(ours, 4096):
                seen.extend(data)
        except OSError:  # the other side is closed
            return

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    process = _start(SLOW, str(tmp_path), stderr=theirs, stdout=subprocess.PIPE)
    process.communicate(timeout=120)
    os.close(theirs)
    reader.join(10)
    os.close(ours)
    assert process.returncode == 0, seen.decode()
    assert b"loading experts: 100%" in seen and b"8/8" in seen


# ---- saving


FORMS = {
    "float8_e8m0fnu": lambda byte: byte.view(jnp.float8_e8m0fnu),
    "uint8": lambda byte: byte,
    "float32": lambda byte: np.ldexp(np.float32(1), byte.astype(np.int32) - 127),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["numpy", "jax"])
def test_saved_weights_load_bit_for_bit(tmp_path, form, kind):
    weights = finite_scales(BIASED)
    given = {
        name: FORMS[form](value) if name.endswith("scale_inv") else value
        for name, value in vars(weights).items()
    }
    given = jm.ExpertWeights(**given)
    if kind == "jax":
        given = jax.tree.map(jnp.asarray, given)
    config = jm.MegaMoeConfig(8, 64, 96, 2, 7.0, 1.702, 1.0, True)
    save_experts(tmp_path, given, config)
    assert same_bits(loaded(tmp_path, 0), weights)
    assert load_config(tmp_path) == config


@pytest.mark.parametrize("implementation", ["cpu", "xla"])
@pytest.mark.parametrize("scale", ["F8_E8M0", "U8"])
def test_a_round_trip_is_bitwise(tmp_path, implementation, scale):
    """Files, prepared and sharded weights, files, weights: the bits of every tensor stay."""
    tensors = deepseek(EIGHT, layer=7, scale=scale)
    write_directory(tmp_path / "one", tensors, deepseek_config(EIGHT))
    mesh = jax.make_mesh((8,), ("ep",))
    weights = load_experts(tmp_path / "one", 7, mesh=mesh, implementation=implementation)
    config = load_config(tmp_path / "one")
    save_experts(tmp_path / "two", {7: weights}, config, shard_bytes=20_000)
    assert len(list((tmp_path / "two").glob("*.safetensors"))) > 2
    with Checkpoint(tmp_path / "one") as one, Checkpoint(tmp_path / "two") as two:
        assert sorted(one.names()) == sorted(two.names())
        for name in one.names():
            assert one.read(name).tobytes() == two.read(name).tobytes()
            assert two.info(name).dtype == ("I8" if name.endswith("weight") else "F8_E8M0")
            assert two.info(name).shape == one.info(name).shape
    assert load_config(tmp_path / "two") == config


def test_several_layers_are_saved(tmp_path):
    layers = {2: experts(seed=2), 0: experts(seed=0)}
    save_experts(tmp_path, layers, jm.MegaMoeConfig(4, 64, 96, 2), shard_bytes=1)
    got = load_all_experts(tmp_path)
    assert list(got) == [0, 2]
    for layer, weights in layers.items():
        assert same_bits(jm.unprepare_weights(got[layer]), weights)


def test_the_hugging_face_form_saves_and_loads(tmp_path):
    write_file(tmp_path / "model.safetensors", hugging_face(EIGHT))
    weights = load_experts(tmp_path, 0)
    save_experts(tmp_path / "saved", weights, jm.MegaMoeConfig(8, 64, 96, 2))
    assert same_bits(loaded(tmp_path / "saved", 0), EIGHT)


def test_an_unread_tensor_may_be_of_any_type(tmp_path):
    tensors = {**deepseek(EIGHT), "x": ("F6_E2M3", (4,), b"abc"), "y": raw(np.ones(3), "I64")}
    write_file(tmp_path / "model.safetensors", tensors)
    assert same_bits(loaded(tmp_path, 0), EIGHT)
