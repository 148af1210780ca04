"""Chat templates, rendered as transformers renders them (transformers/utils/chat_template_utils.py), in a sandbox."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from minipic_sdk.errors import TemplateError

if TYPE_CHECKING:
    import jinja2

# For models without a template (base models): the texts, one below the other.
PLAIN_TEMPLATE: Final = (
    "{{ bos_token }}{% for m in messages %}{{ m['content'] }}"
    "{% if not loop.last %}{{ '\\n\\n' }}{% endif %}{% endfor %}"
)

ToJSON = Callable[[object, Mapping[str, Any]], str | None]


class ChatTemplate:
    """A compiled template with the constants of its tokenizer."""

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        self.source = source
        self.variables = variables  # bos_token, eos_token, ...

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        to_json: ToJSON | None = None,
        now: datetime | None = None,
    ) -> str:
        """The prompt's text, generation prompt included.

        Args:
            messages: as in the OpenAI API.
            tools: OpenAI tool definitions.
            options: further template variables, such as ``enable_thinking``.
            to_json: ``to_json(value, json.dumps options)``, asked first by the ``tojson`` filter; ``None``: as usual.
            now: what ``strftime_now`` tells.

        Raises:
            TemplateError: the template is not valid, or refuses the messages.
        """
        import jinja2

        context = {"documents": None, "add_generation_prompt": True, **self.variables, **(options or {})}
        if to_json is not None:
            context["_to_json"] = to_json
        if now is not None:
            context["strftime_now"] = now.strftime
        try:
            return self._compiled.render(messages=messages, tools=tools, **context)
        except (jinja2.TemplateError, TypeError, ValueError, AttributeError) as error:
            raise TemplateError(f"the chat template refused the messages: {error}") from error

    @cached_property
    def wants_parts(self) -> bool:
        """Whether messages must be lists of ``{"type": "text"}`` parts, because a plain text would be lost."""
        probe = "minipic probe"
        try:
            return probe not in self.render([{"role": "user", "content": probe}])
        except TemplateError:
            return False

    @cached_property
    def _compiled(self) -> "jinja2.Template":
        import jinja2

        from minipic_sdk._jinja import environment

        try:
            return environment().from_string(self.source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template is not valid: {error}") from error
