"""SDAR's text: the Qwen3 chat template and its think part.

The template opens an answer with a bare header. It renders a *final* assistant turn as a think part and the
answer, the think part empty if there is none, so prompt and answer alone are not what it renders:

    thinking on    prompt      ``...<|im_start|>assistant\\n``
                   completion  ``<think>\\nWHY\\n</think>\\n\\nANSWER<|im_end|>``
    thinking off   prompt      ``...<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n``
                   completion  ``ANSWER<|im_end|>``

Either way prompt and completion together are the rendered conversation, up to the line break after its last turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dare_core.api import Problem, UserError
from dare_core.backbones.text import TokenizerCodec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from dare_core.types import ModelFacts

OPEN, CLOSE = "<think>", "</think>"

#: for tokenizer folders that have no template: the published one without tools
CHAT_TEMPLATE = (
    "{% set last = namespace(query=-1) %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{% set last.query = loop.index0 %}{% endif %}"
    "{% endfor %}"
    "{% for message in messages %}"
    "{% set content = message['content'] %}"
    "{% if message['role'] == 'assistant' %}"
    "{% set why = '' %}"
    "{% if '</think>' in content %}"
    "{% set why = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].strip('\n') %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}"
    "{% endif %}"
    "{% if loop.index0 > last.query and (loop.last or why) %}"
    "{% set content = '<think>\n' + why + '\n</think>\n\n' + content.lstrip('\n') %}"
    "{% endif %}"
    "{% endif %}"
    "<|im_start|>{{ message['role'] + '\n' + content }}<|im_end|>{{ '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{{ '\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{% endif %}"
)


class SdarCodec(TokenizerCodec):
    """Text with or without a think part.

    Args:
        tokenizer: the folder's.
        facts: ids.
        thinking: whether answers open with their think part.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, facts: ModelFacts, *, thinking: bool) -> None:
        end_id = facts.extra_ids.get("eot", facts.eos_ids[0])
        options = {"enable_thinking": thinking}
        super().__init__(tokenizer, facts, end_id=end_id, template=CHAT_TEMPLATE, options=options)
        self._thinking = thinking

    def encode_completion(self, text: str) -> list[int]:
        """See the interface. Line breaks before the answer are dropped, as the template does.

        Raises:
            UserError: the answer has a think part, but thinking is off.
        """
        if not self._thinking:
            if CLOSE in text:
                raise UserError(
                    Problem(
                        f"an answer holds {CLOSE}, but thinking is off: its prompt closed the think part already",
                        path="model.thinking",
                        hint="set it to true, or take the think parts out of the answers",
                    )
                )
            return super().encode_completion(text.lstrip("\n"))
        why, answer = "", text
        if CLOSE in text:
            # The template's own reading, so that what is trained is what it renders.
            why = text.split(CLOSE)[0].rstrip("\n").split(OPEN)[-1].strip("\n")
            answer = text.split(CLOSE)[-1]
        return super().encode_completion(f"{OPEN}\n{why}\n{CLOSE}\n\n" + answer.lstrip("\n"))
