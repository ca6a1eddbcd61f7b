"""TRL's GRPOTrainer resets the environment, runs its tools and scores a group; its model is a script."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import httpx
import trl
from byte_tokenizer import byte_tokenizer
from datasets import Dataset
from steps import GIVEN, Actor, report
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from stillweb.trainers.trl import browser_environment

TASK = GIVEN["tasks"][0]
NAMES = {"bid": "element"}
TOOLS = {"terminate": "finish"}
PAGE = re.compile(
    r"(?:Goal: [^\n]*\n)?(Page: .*?)<\|im_end\|>|<tool_response>\n(.*?)\n</tool_response>", re.DOTALL
)


def call(action: dict) -> str:
    name = TOOLS.get(action["action"], action["action"])
    arguments = {NAMES.get(each, each): value for each, value in action.items() if each != "action"}
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class Scripted(GRPOTrainer):
    """The first of a group follows the plan, the second ends immediately, the third loses its session."""

    calls = 0

    def _generate_single_turn(self, prompt_ids, *given, **named):
        self.calls += 1
        texts = [self.processing_class.decode(ids) for ids in prompt_ids]
        if self.calls == 1:
            lease = self.environments[2]._episode._lease.id
            httpx.delete(f"{GIVEN['rollouts']}/v1/leases/{lease}", trust_env=False)
            said = [self.planned(texts[0]), call({"action": "terminate"}), self.planned(texts[2])]
        else:
            said = [self.planned(text) for text in texts]
        return [
            [*self.processing_class.encode(each), self.processing_class.eos_token_id] for each in said
        ], None

    def planned(self, text: str) -> str:
        """Follow the plan through all pages of a conversation."""
        pages = [first or second for first, second in PAGE.findall(text)]
        if "episode is over" in pages[-1]:
            return "Done."
        actor = Actor(TASK)
        for page in pages:
            action = actor.act(page)
        return call(action)


SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 2}
ROW = {"prompt": [{"role": "user", "content": "Act."}], "task_id": TASK}
templates = Path(trl.__file__).parent / "chat_templates"
made = byte_tokenizer((templates / "qwen3_instruct_2507.jinja").read_text())
trainer = Scripted(
    model=Qwen2ForCausalLM(Qwen2Config(vocab_size=len(made), max_position_embeddings=1_000_000, **SIZES)),
    args=GRPOConfig(
        output_dir="grpo", use_cpu=True, bf16=False, per_device_train_batch_size=3, num_generations=3,
        max_completion_length=900_000, report_to=[], use_vllm=False,
    ),
    train_dataset=Dataset.from_list([ROW] * 3),
    processing_class=made,
    environment_factory=browser_environment({"server": GIVEN["rollouts"]}, max_observation_length=100_000),
)  # fmt: skip
rows = [dict(row) for row in trainer.train_dataset]
scored = trainer._generate_and_score_completions(rows)
(rewards,) = trainer._logs["rewards"].values()
report(
    {
        "class": type(trainer).__mro__[1].__name__,
        "tools": sorted(tool.__name__ for tool in trainer.tools),
        "rewards": [None if math.isnan(reward) else reward for reward in rewards],
        "advantages": [round(each, 2) for each in scored["advantages"].tolist()],
        "mean": trainer._metrics["train"]["reward"],
    }
)
