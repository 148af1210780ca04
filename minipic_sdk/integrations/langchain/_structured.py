"""Structured output: three methods, as LangChain names them."""

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from langchain_core.language_models import LanguageModelInput
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.output_parsers.openai_tools import JsonOutputKeyToolsParser, PydanticToolsParser
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass

from minipic_sdk.errors import InputError

if TYPE_CHECKING:
    from minipic_sdk.integrations.langchain.chat_models import ChatMiniPIC


def structured(
    llm: "ChatMiniPIC", schema: Any, *, include_raw: bool, method: str, strict: bool | None = None, **kwargs: Any
) -> Runnable[LanguageModelInput, Any]:
    """A chain of ``llm`` and a parser for ``schema``.

    Raises:
        InputError: an unknown method or option.
    """
    if kwargs:
        raise InputError(f"with_structured_output has no option {min(kwargs)!r}")
    is_model = isinstance(schema, type) and is_basemodel_subclass(schema)
    told = {"kwargs": {"method": method}, "schema": convert_to_openai_tool(schema)}  # for LangSmith
    parser: Runnable[Any, Any]
    if method == "function_calling":
        name = convert_to_openai_tool(schema)["function"]["name"]
        bound = llm.bind_tools([schema], tool_choice=name, strict=strict, ls_structured_output_format=told)
        parser = (
            PydanticToolsParser(tools=[schema], first_tool_only=True)
            if is_model
            else JsonOutputKeyToolsParser(key_name=name, first_tool_only=True)
        )
    elif method in ("json_schema", "json_mode"):
        wanted: dict[str, Any] = {"type": "json_object"}
        if method == "json_schema":
            spelled = convert_to_json_schema(schema)
            wanted = {"type": "json_schema", "json_schema": {"name": spelled.get("title", "answer"), "schema": spelled}}
        bound = llm.bind(response_format=wanted, ls_structured_output_format=told)
        parser = PydanticOutputParser[Any](pydantic_object=schema) if is_model else JsonOutputParser()
    else:
        raise InputError(f"method={method!r}: 'json_schema', 'function_calling' or 'json_mode'")
    if not include_raw:
        return bound | parser
    parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=bound) | parsed.with_fallbacks([failed], exception_key="parsing_error")
