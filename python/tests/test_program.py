"""The program of the package: what needs no PyTorch."""

import subprocess
import sys


def run(*arguments, **options):
    command = [sys.executable, "-m", "everstep", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def test_the_program_imports_no_framework():
    code = "import sys, everstep, everstep.__main__; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
    told = run("--help")
    assert told.returncode == 0 and "launch" in told.stdout


def test_a_native_run_trains_with_processes_of_the_interpreter(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be that is the question " * 400)
    directory = tmp_path / "run"
    trained = run("train", "--data", str(text), "--steps", "3", "--dir", str(directory))
    assert trained.returncode == 0, trained.stderr
    assert (directory / "model.safetensors").exists()


def test_a_script_that_does_not_exist_is_a_usage_error(tmp_path):
    told = run("launch", "none.py", cwd=tmp_path)
    assert told.returncode == 2 and "there is no such file" in told.stderr
    assert not (tmp_path / "runs").exists()


def test_a_script_without_a_run_is_told_what_it_lacks(tmp_path):
    script = tmp_path / "empty.py"
    script.write_text("print('nothing to train')\n")
    told = run("launch", "--dir", str(tmp_path / "run"), str(script))
    assert told.returncode == 1
    assert "it has no everstep.Run" in told.stderr
    assert "worker-1: nothing to train" in told.stdout


def test_an_exception_before_the_run_is_printed_once_with_its_traceback(tmp_path):
    script = tmp_path / "broken.py"
    script.write_text("def f():\n    raise ValueError('it is broken')\nf()\n")
    directory = tmp_path / "run"
    for _ in range(2):
        # The directory is free for the next try.
        told = run("launch", "--dir", str(directory), "--workers", "2", str(script))
        assert told.returncode == 1
        assert told.stderr.count("Traceback (most recent call last)") == 1
        assert told.stderr.count("ValueError: it is broken") == 1
        assert "worker-" in told.stderr
