"""The example model: a user's two commands, and that cache, sharding and MoE fit together."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
sys.path.insert(0, str(EXAMPLES))

import generate  # noqa: E402
import random_checkpoint  # noqa: E402
from decoder import Decoder  # noqa: E402

FAMILIES = sorted(random_checkpoint.CONFIGS)


def mesh_of(devices):
    kinds = (AxisType.Auto,)
    return jax.make_mesh((devices,), ("ep",), axis_types=kinds, devices=jax.devices()[:devices])


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    paths = {family: tmp_path_factory.mktemp(family) for family in FAMILIES}
    for family, path in paths.items():
        random_checkpoint.write(path, family)
    return paths


@pytest.fixture(scope="module")
def models(checkpoints):
    return {family: Decoder.load(path, mesh_of(1)) for family, path in checkpoints.items()}


@pytest.mark.parametrize("devices, family", [(1, "deepseek_v4"), (8, "gpt_oss")])
def test_the_example_generates(run_python, devices, family):
    code = f"""
import runpy, sys
sys.path.insert(0, {str(EXAMPLES)!r})
sys.argv = ["generate.py", "--devices", "{devices}", "--prompt", "8", "--new-tokens", "4"]
sys.argv += ["--family", "{family}"]
runpy.run_path({str(EXAMPLES / "generate.py")!r}, run_name="__main__")
"""
    output = run_python(code, devices=devices)
    assert f"{family}-like" in output and f"{devices} cpu device(s)" in output
    assert re.search(r"decode: +\d+ tokens/s \(8 x 1\), MoE layers \d+% of the time", output)
    assert re.search(r"prefill: +\d+ tokens/s \(8 x 8\), MoE layers \d+% of the time", output)
    assert re.search(r"continues( \d+){4} \.\.\.", output)
    assert "%|" not in output  # no progress bar into a pipe


def test_the_example_refuses_batches_that_do_not_divide(run_python):
    code = f"""
import runpy, sys
sys.path.insert(0, {str(EXAMPLES)!r})
sys.argv = ["generate.py", "--devices", "3"]
runpy.run_path({str(EXAMPLES / "generate.py")!r}, run_name="__main__")
"""
    output = run_python(code, check=False)
    assert "--batch 8 does not divide over --devices 3" in output and "Traceback" not in output


@pytest.mark.parametrize("family", FAMILIES)
def test_decoding_with_the_cache_equals_reading_the_whole_text(models, family):
    model = models[family]
    call = nnx.jit(lambda model, *args: model(*args))
    ids = jax.random.randint(jax.random.key(1), (2, 9), 0, 512, jnp.int32)
    whole, _ = call(model, ids, model.empty_cache(2, 16), 0)
    logits, cache = call(model, ids[:, :6], model.empty_cache(2, 16), 0)
    for position in range(6, 9):
        logits, cache = call(model, ids[:, position : position + 1], cache, position)
    # The same arithmetic in other shapes: bfloat16 products of attention differ in their last bits,
    # about 2^-8 after two layers; a cache that is off by one position differs by about 2^-2.
    assert _distance(logits, whole) < 2**-4
    shifted, _ = call(model, ids[:, 8:9], cache, 7)
    assert _distance(shifted, whole) > 2**-3


def _distance(one, other):
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    return np.linalg.norm(one - other) / np.linalg.norm(other)


@pytest.mark.parametrize("family", FAMILIES)
def test_eight_devices_compute_what_one_does(models, checkpoints, family):
    one = models[family]
    mesh = mesh_of(8)
    eight = Decoder.load(checkpoints[family], mesh)
    assert eight.blocks[0].moe.expert_weights().gate_up_proj.sharding.spec[0] == "ep"
    ids = jax.random.randint(jax.random.key(2), (8, 5), 0, 512, jnp.int32)
    sharded = jax.device_put(ids, NamedSharding(mesh, P("ep")))
    call = nnx.jit(lambda model, *args: model(*args))
    logits, cache = call(eight, sharded, eight.empty_cache(8, 8), 0)
    wanted, _ = call(one, ids, one.empty_cache(8, 8), 0)
    assert _distance(logits, wanted) < 2**-4  # bfloat16 products of other heights, as above
    # Attention is data-parallel: each device keeps the cache of its own sequences.
    for leaf in jax.tree.leaves(cache):
        assert leaf.sharding.is_equivalent_to(NamedSharding(mesh, P("ep")), leaf.ndim)


def test_prefill_and_decode_compile_once(models):
    model = models["gpt_oss"]
    graphdef, state = nnx.split(model)
    cache = model.empty_cache(2, 8)
    prompt = jax.device_put(jnp.zeros((2, 3), jnp.int32), NamedSharding(model.mesh, P("ep")))
    before = generate.step._cache_size()
    token, cache = generate.step(graphdef, state, prompt, cache, 0)
    for position in range(3, 7):
        token, cache = generate.step(graphdef, state, token, cache, position)
    assert generate.step._cache_size() == before + 2
