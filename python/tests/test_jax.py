"""JAX models as workers: the same bits for any number of workers, and whatever happens to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import descendants, needs_jax

pytestmark = needs_jax


def workers(count: int, *more: str) -> tuple[str, ...]:
    return ("--workers", str(count), *more)


@pytest.fixture(scope="module")
def known():
    """The state hashes of jax_net.py by its arguments, as its first runs found them."""
    return {}


def the_hash(train, known: dict, *arguments: str) -> str:
    if arguments not in known:
        known[arguments] = train("jax_net.py", *arguments).hash
    return known[arguments]


@pytest.mark.parametrize(
    "arguments", [("--validate",), ("--statistics",)], ids=["held-out samples", "statistics"]
)
def test_a_model_has_the_same_bits_on_1_2_and_4_workers(train, known, arguments, tmp_path):
    expected = the_hash(train, known, *arguments)
    files = set()
    for count in (2, 4):
        path = tmp_path / f"{count}.safetensors"
        ended = train("jax_net.py", *arguments, "--save", str(path), flags=workers(count))
        assert ended.hash == expected, f"{count} workers"
        assert ended.out.count(f"hash {expected}") == count, "each process has the report"
        assert (ended.report["samples_lost"], ended.report["samples_repeated"]) == (0, 0)
        assert ended.report["bitwise"] is True
        assert ended.report["loss"]["last"] < ended.report["loss"]["first"]
        files.add(path.read_bytes())
    assert len(files) == 1 and b'"layers.1.weight"' in next(iter(files))


def test_metrics_and_held_out_samples_are_in_the_lines(train):
    found = []
    for count in (1, 3):
        ended = train("jax_net.py", "--validate", flags=workers(count))
        assert ended.code == 0, ended.err
        lines = [json.loads(it) for it in (ended.directory / "metrics.jsonl").read_text().splitlines()]
        assert all(line["scalars"]["greatest"] > 0.0 for line in lines)
        due = {line["step"]: line["validation_loss"] for line in lines if "validation_loss" in line}
        assert list(due) == [10, 20, 30] and due[30] < due[10]
        found.append((due, [line["scalars"] for line in lines], ended.report["metric"]))
    assert found[0] == found[1]


def test_a_killed_worker_changes_no_bit(launch, train, known, tmp_path):
    expected = the_hash(train, known)
    hold = tmp_path / "hold"
    hold.write_text("10")
    launched = launch("jax_net.py", "--hold", str(hold), flags=workers(2, "--respawn"))
    launched.await_steps(8)
    launched.until("two members", lambda: len(launched.workers()) == 2)
    os.kill(launched.workers()[0], signal.SIGKILL)
    launched.await_event("lost")
    hold.write_text("1000")
    ended = launched.end()
    assert ended.hash == expected
    assert ended.report["respawned"] == 1
    assert (ended.report["samples_lost"], ended.report["samples_repeated"]) == (0, 0)


@pytest.mark.parametrize("arguments", [(), ("--statistics",)], ids=["adamw", "statistics"])
def test_a_run_goes_on_after_the_end_of_all_processes(launch, train, known, tmp_path, arguments):
    expected = the_hash(train, known, *arguments)
    hold = tmp_path / "hold"
    hold.write_text("17")
    flags = workers(2, "--checkpoint-every", "8")
    first = launch("jax_net.py", *arguments, "--hold", str(hold), flags=flags)
    first.await_event("checkpoint", 8)
    first.kill_all()
    hold.write_text("1000")
    second = launch.resume(first, "--workers", "3")
    assert second.end().hash == expected
    back = [event["to"] for event in second.events() if event["event"] == "rollback"]
    assert back and back[-1] >= 8, "it went on from a checkpoint"


@pytest.mark.parametrize("kind", ["adamw", "clipped", "adam", "sgd", "nesterov", "lion"])
def test_a_run_is_a_plain_loop_of_jax(train, tmp_path, kind):
    path = tmp_path / "plain.json"
    ended = train("jax_parity.py", kind, str(path))
    assert ended.code == 0, ended.err + ended.logs()
    plain = json.loads(path.read_text())
    lines = (ended.directory / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["loss"] for line in lines] == pytest.approx(plain["losses"], abs=1e-6)
    # A sign of Lion flips where a mean of gradients is all but zero.
    assert plain["apart"] < (5e-3 if kind == "lion" else 2e-5)


def test_four_devices_of_one_worker_share_the_rows(train, known, monkeypatch):
    one = the_hash(train, known)
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    ended = [train("jax_net.py", flags=workers(count)) for count in (1, 2)]
    assert ended[0].out.count("4 devices") == 1
    assert ended[0].hash == ended[1].hash
    assert ended[0].hash != one, "sums over rows have another order"


def run_of(**changes):
    """Makes a run, up to what is refused."""
    import everstep.jax as jax_of_everstep
    import jax
    import numpy as np

    settings = {
        "loss": lambda params, batch, key: (params["w"] * batch).mean(),
        "params": {"w": np.ones(3, np.float32)},
        "data": [np.ones(3, np.float32)] * 8,
        "optimizer": jax_of_everstep.SGD(0.1),
        "steps": 2,
        "data_shards": 2,
        "micro_batch": 2,
    }
    settings |= {name: it(jax_of_everstep, jax, np) for name, it in changes.items()}
    loss, params = settings.pop("loss"), settings.pop("params")
    return jax_of_everstep.Run(loss, params, **settings)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"params": lambda e, j, np: {"w": np.ones(3, np.float16)}}, "w is of float16"),
        ({"params": lambda e, j, np: {"w": np.ones(3, np.float32), "n": 3}}, "n is a int"),
        ({"params": lambda e, j, np: {}}, "nothing to train"),
        ({"loss": lambda e, j, np: lambda p, b, k: p["w"] * b}, r"shape \(2, 3\)"),
        ({"loss": lambda e, j, np: lambda p, b, k: (p["w"].sum(), 1.0)}, "a dict of numbers"),
        (
            {"loss": lambda e, j, np: lambda p, b, k: (p["w"].sum(), {"rows": b[:, 0]})},
            "metric rows has the shape",
        ),
        ({"data": lambda e, j, np: []}, "the data set is empty"),
        ({"data": lambda e, j, np: [np.ones(3), np.ones(4)], "weights": lambda e, j, np: [1]}, "1 weights"),
        ({"data": lambda e, j, np: ["a", "b"]}, "no array of JAX has"),
        ({"data": lambda e, j, np: iter([])}, "give a map-style data set"),
        ({"optimizer": lambda e, j, np: e.AdamW(1e-3, groups={"*.bias": {}})}, "no parameter has such"),
        ({"optimizer": lambda e, j, np: e.AdamW(1e-3, groups={"w": {"decay": 1}})}, "perhaps weight_decay"),
        ({"statistics": lambda e, j, np: {"m": np.ones(3, np.float32)}}, "takes|returned no statistics"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_words(changes, words):
    with pytest.raises((TypeError, ValueError), match=words):
        run_of(**changes)


def test_an_optimizer_of_optax_is_refused_in_words():
    optax = pytest.importorskip("optax")
    with pytest.raises(TypeError, match="GradientTransformation of Optax.*AdamW"):
        run_of(optimizer=lambda e, j, np: optax.adamw(1e-3))


def test_samples_of_other_shapes_are_refused_in_words():
    import everstep.jax  # noqa: F401
    import numpy as np
    from everstep.jax.batches import Batches
    from everstep.samples import SeededDataset

    data = [np.ones(3, np.float32)] * 4 + [np.ones(5, np.float32)] * 4
    batches = Batches(SeededDataset(data, 1), 2, None)
    assert batches.of([(0, 1), (0, 2)], (1, 0, 0)).shape == (2, 3)
    with pytest.raises(ValueError, match=r"data shard 1 in step 7 has other shapes.*\[2, 5\]"):
        batches.of([(0, 4), (0, 5)], (7, 1, 0))
    with pytest.raises(ValueError, match="do not fit each other"):
        batches.of([(0, 3), (0, 4)], (1, 0, 0))


def python(program: str, **variables: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


def test_the_package_needs_no_framework_and_that_of_jax_needs_no_torch():
    told = python(
        "import sys, everstep, everstep.__main__; assert not {'jax', 'torch'} & sys.modules.keys()\n"
        "import everstep.jax; assert 'torch' not in sys.modules and 'jax' in sys.modules"
    )
    assert told.returncode == 0, told.stderr


def test_a_process_without_jax_is_told_what_to_install():
    told = python("import sys; sys.modules['jax'] = None; import everstep.jax")
    assert "pip install 'everstep[jax]'" in told.stderr, told.stderr


def test_a_process_in_which_jax_has_begun_is_told_what_to_do():
    program = "import jax; jax.numpy.ones(3); import everstep.jax"
    told = python(program, XLA_FLAGS="", NPROC="")
    assert "import everstep.jax before" in told.stderr, told.stderr


def test_a_batch_that_the_devices_cannot_share_is_refused_in_words():
    program = (
        "import everstep.jax, numpy as np\n"
        "everstep.jax.Run(lambda p, b, k: (p * b).mean(), np.ones(3, np.float32), steps=2, micro_batch=6,\n"
        "    data=[np.ones(3, np.float32)] * 8, optimizer=everstep.jax.SGD(0.1), data_shards=2)"
    )
    told = python(program, XLA_FLAGS="--xla_force_host_platform_device_count=4")
    assert "the 4 devices of this worker share the rows" in told.stderr, told.stderr


def small_program():
    import everstep.jax  # noqa: F401
    import jax
    import numpy as np
    from everstep.jax.program import Program
    from everstep.jax.tree import FlatTree

    params = {"b": np.zeros(3, np.float32), "w": np.ones((2, 3), np.float32)}
    tree = FlatTree(params, "params")

    def loss(params, batch, key):
        return ((batch @ params["w"] + params["b"]) ** 2).mean() * jax.random.uniform(key)

    return Program(loss, tree, None, jax.local_devices()[:1], 1), params, loss


def test_the_flat_vector_and_the_gradients_are_not_copied():
    import jax
    import numpy as np
    from everstep.jax.memory import Memory, parts_of_first_device
    from everstep.jax.tree import FlatTree

    program, params, loss = small_program()
    memory = Memory(program.count(), program.whole)
    FlatTree(params, "params").write(params, memory.host)
    assert memory.host.ctypes.data % 64 == 0
    flat = memory.on_devices(1)
    if flat.addressable_data(0).device.platform != "cpu":
        pytest.skip("this process computes on another device than the CPU")
    assert flat.addressable_data(0).unsafe_buffer_pointer() == memory.host.ctypes.data
    batch, place = np.ones((4, 2), np.float32), np.array([5, 1, 0], np.uint32)
    found = program.compute(flat, None, batch, place, np.float32(0.5), None)
    [gradient] = found.gradients
    address = gradient.addressable_data(0).unsafe_buffer_pointer()
    [part] = parts_of_first_device(found.gradients)
    assert np.asarray(part).ctypes.data == address
    key = jax.random.key(1)
    for number in (5, 1, 0):
        key = jax.random.fold_in(key, number)
    expected = jax.grad(loss)(params, batch, key)
    flat_of = np.concatenate([np.ravel(it) for it in jax.tree.leaves(expected)])
    np.testing.assert_allclose(gradient, 0.5 * flat_of, rtol=1e-6)
    again = program.compute(flat, None, batch, place, np.float32(0.5), found.gradients)
    np.testing.assert_allclose(again.gradients[0], flat_of, rtol=1e-6)
    np.testing.assert_allclose(gradient, 0.5 * flat_of, rtol=1e-6, err_msg="it was not donated")


def test_the_program_is_exported_for_tpus_gpus_and_cpus():
    import jax
    import numpy as np

    program, *_ = small_program()
    arguments = program.arguments(np.ones((4, 2), np.float32))
    exported = jax.export.export(program.compute, platforms=("tpu", "cuda", "cpu"))(*arguments)
    assert set(exported.platforms) == {"tpu", "cuda", "cpu"}
    assert exported.mlir_module_serialized


def test_large_gradients_leave_by_themselves_and_small_ones_together():
    import everstep.jax  # noqa: F401
    import numpy as np
    from everstep.jax.program import RANGE_ELEMENTS, _ranges
    from everstep.jax.tree import FlatTree

    sizes = [3, 5, RANGE_ELEMENTS, 7, RANGE_ELEMENTS - 8, 9, 1, 1]
    tree = FlatTree([np.zeros(size, np.float32) for size in sizes], "params")
    assert _ranges(tree) == [(0, 2), (2, 3), (3, 6), (6, 8)]


def test_a_model_that_does_not_repeat_is_refused_in_words(train, tmp_path):
    script = tmp_path / "chance.py"
    script.write_text(
        "import everstep.jax, jax, numpy as np, secrets\n"
        "def loss(params, batch, key):\n"
        "    shape = jax.ShapeDtypeStruct((), np.float32)\n"
        "    chance = jax.pure_callback(lambda: np.float32(secrets.randbelow(1 << 20)), shape)\n"
        "    return (params * batch).mean() * (1 + chance)\n"
        "everstep.jax.train(loss, np.ones(3, np.float32), [np.ones(3, np.float32)] * 8, steps=4,\n"
        "    optimizer=everstep.jax.SGD(0.1), data_shards=2, micro_batch=2)\n"
    )
    ended = train(str(script))
    assert ended.code == 1 and "does not repeat here" in ended.err, ended.err
    assert "pure_callback" in ended.err


def test_a_script_without_a_launcher_trains_and_leaves_no_process(tmp_path, train, known):
    from conftest import SCRIPTS

    command = [sys.executable, str(SCRIPTS / "jax_net.py")]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path)
    started: set[int] = set()
    while process.poll() is None:
        started |= descendants(process.pid)
        time.sleep(0.05)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert f"hash {the_hash(train, known)}" in out
    assert started and not started & descendants(os.getpid())


def test_a_dry_run_says_what_a_worker_takes(tmp_path):
    from conftest import SCRIPTS

    script = str(SCRIPTS / "jax_net.py")
    command = [sys.executable, "-m", "everstep", "launch", "--dry-run", script, "--validate"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert "together, about" in told.stdout, told.stdout


def test_a_worker_with_other_devices_is_refused_in_words(launch, tmp_path):
    from conftest import LAUNCH_TIMEOUT, SCRIPTS

    hold = tmp_path / "hold"
    hold.write_text("10")
    launched = launch("jax_net.py", "--hold", str(hold))
    launched.await_steps(5)
    home = launched.directory
    cluster = json.loads((home / "cluster.json").read_text())
    command = [sys.executable, "-m", "everstep", "worker", "--dir", str(tmp_path / "joiner")]
    command += ["--coordinators", cluster["coordinators"][0]["address"]]
    command += ["--join", f"@{home / 'join.token'}", "--", str(SCRIPTS / "jax_net.py")]
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    joiner = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    until = time.monotonic() + LAUNCH_TIMEOUT
    while "its number of devices" not in (home / "events.jsonl").read_text():
        assert time.monotonic() < until, joiner.poll()
        time.sleep(0.05)
    joiner.kill()
    joiner.wait()
    hold.write_text("1000")
    assert launched.end().report["bitwise"] is True
