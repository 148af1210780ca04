"""Prompt Cache: schemas, their markup, and the prompts that select from them."""

import pytest

from minipic_sdk import Document, InputError, ModelProfile, Prompt
from minipic_sdk.errors import SchemaError
from minipic_sdk.schema import Module, Param, Schema, Union, parse_prompt, parse_schema

MIAMI = "Miami is hot and has long beaches, on which people from everywhere lie in the sun all day."
PARIS = "Paris has a tower, a river with old bridges, and more bakeries than one can visit in a lifetime."
MARKUP = f"""
<!-- a comment -->
<schema name="travel">
  <system>You plan trips.</system>
  <user>
    All of it is about one single journey that somebody wants to make in the coming year.
    <module name="plan">
      A trip of
      <parameter name="days" length="4" scaffold="a few"/>
      days. <!-- another --> It must be planned with great care for what people like, and for the weather there.
      <union scaffold="miami">
        <module name="miami">{MIAMI}</module>
        <module name="paris">{PARIS}</module>
      </union>
    </module>
    <module name="tail" cache="false">Never cached.</module>
  </user>
  <assistant/>
</schema>
"""


@pytest.fixture(scope="module")
def profile():
    return ModelProfile.default()


@pytest.fixture(scope="module")
def schema():
    return parse_schema(MARKUP)


def compose(profile, documents, **options):
    return Prompt.compose(documents, "Where to?", layout="prompt-cache", profile=profile, **options)


def places(prompt):
    """Logical start of every span by name."""
    spans = [(s, p) for s, p in zip(prompt.spans, prompt.meta.placements, strict=True) if s.kind == "span"]
    return {s.name: p.logical for s, p in spans}


def test_markup_and_objects_say_the_same(profile, schema):
    intro = "All of it is about one single journey that somebody wants to make in the coming year."
    rest = " days. It must be planned with great care for what people like, and for the weather there."
    cities = Union(Module("miami", MIAMI), Module("paris", PARIS))
    plan = Module("plan", "A trip of ", Param("days", 4, "a few"), rest, cities)
    other = Schema("travel", intro, plan, Module("tail", "Never cached.", cache=False), system="You plan trips.")
    wanted = {"plan": {"days": "three", "paris": {}}}, "tail"
    texts = [[d.content for d in s.select(*wanted)] for s in (schema, other)]
    assert [" ".join(t.split()) for t in texts[0]] == [" ".join(t.split()) for t in texts[1]]
    assert schema.system == other.system == "You plan trips."


def test_modules_stand_where_the_schema_puts_them(profile, schema):
    few = compose(profile, schema.select({"plan": {"paris": {}}}))
    value = compose(profile, schema.select({"plan": {"days": "3", "miami": {}}}))
    assert places(few)["travel/plan/paris"] == places(value)["travel/plan/miami"], "alternatives start alike"
    head = len(few.spans[0].visible)
    start = places(few)["travel"]
    assert start == head
    assert places(few)["travel/plan"] == places(value)["travel/plan"]
    days = len(profile.encode("A trip of"))
    assert places(few)["travel/plan#2"] - places(few)["travel/plan"] == days + 4, "room for the whole argument"


def test_arguments_are_computed_and_the_rest_is_shared(profile, schema):
    one = compose(profile, schema.select({"plan": {"days": "three", "paris": {}}}))
    two = compose(profile, schema.select({"plan": {"days": "22", "paris": {}}}, "tail"))
    keys = [{s.name: s.key for s in p.spans if s.kind == "span"} for p in (one, two)]
    assert keys[0] == keys[1]
    assert set(keys[0]) == {"travel", "travel/plan", "travel/plan#2", "travel/plan/paris"}
    assert "A trip of three days. " in one.text
    assert "A trip of 22 days. " in two.text
    assert "Never cached.\n\nWhere to?" in two.text


def test_a_module_shares_its_blocks_with_a_document_of_the_same_text(profile, schema):
    module = compose(profile, schema.select({"plan": {"paris": {}}}))
    document = Prompt.compose([Document(PARIS, name="travel/plan/paris")], "Where to?", profile=profile)
    found = {s.key for s in module.spans if s.kind == "span"}
    assert document.spans[1].key in found


def test_the_same_selection_under_other_layouts(profile, schema):
    documents = schema.select({"plan": {"days": "3", "paris": {}}}, "tail")
    plain = Prompt.compose(documents, "Where to?", layout="prefix", profile=profile)
    for layout in ("anchored", "epic", "prompt-cache"):
        prompt = Prompt.compose(documents, "Where to?", layout=layout, profile=profile)
        assert prompt.plain_token_ids == plain.token_ids


def test_a_published_prompt(profile, schema):
    parsed = parse_prompt(
        schema,
        """<prompt schema="travel">
             <plan days="five"><miami/></plan> <tail/>
             <user>Where shall I swim?</user>
           </prompt>""",
    )
    assert parsed.question == "Where shall I swim?"
    assert parsed.system == "You plan trips."
    names = [d.name for d in parsed.documents]
    assert names == ["travel", "travel/plan", "travel/plan/days", "travel/plan#2", "travel/plan/miami", "travel/tail"]


def test_nested_modules_and_defaults(schema):
    texts = [d.content for d in schema.select("plan")]
    assert texts[2] == " a few"
    assert [d.content for d in schema.select()] == [texts[0]]


@pytest.mark.parametrize(
    ("markup", "line", "column", "says"),
    [
        ("<schema name='a'>\n  <module name='b'>\n</schema>", 3, 3, "mismatched tag"),
        ("<schema name='a'>\n <module>x</module></schema>", 2, 2, "<module> needs the attribute 'name'"),
        ("<schema name='a'><module name='b'>A & B</module></schema>", 1, 38, "not well-formed"),
        ("<schema name='a'>\n<module name='b'>\n<parameter name='p'/></module></schema>", 3, 1, "'length'"),
        ("<schema name='a'><module name='b'><parameter name='p' length='x'/></module></schema>", 1, 35, "length='x'"),
        ("<schema name='a'><module name='b'><parameter name='p' length='0'/></module></schema>", 1, 35, "length 0"),
        ("<schema name='a'>\n\n<parameter name='p' length='1'/></schema>", 3, 1, "a parameter stands in a module"),
        ("<schema name='a'><union>text</union></schema>", 1, 18, "text in a union"),
        ("<schema name='a'><union/></schema>", 1, 18, "at least one"),
        ("<schema name='a'><union><other/></union></schema>", 1, 25, "<other> in a union"),
        ("<schema name='a'><union scaffold='x'><module name='b'>t</module></union></schema>", 1, 18, "scaffold 'x'"),
        ("<schema name='a'><module name='b'/>\n<module name='b'/></schema>", 1, 1, "'a' defines 'b' twice"),
        ("<schema name='a'>\n<other/></schema>", 2, 1, "unknown element <other>"),
        ("<schema name='a'><module name='b' cache='no'/></schema>", 1, 18, "cache='no'"),
        ("<schema name='a' size='3'/>", 1, 1, "no attribute 'size'"),
        ("<schema name='a'><assistant>Hi</assistant></schema>", 1, 18, "<assistant> with text"),
        ("<schema name='a'><module name='b'><user>Hi</user></module></schema>", 1, 35, "<user> inside a module"),
        ("<prompt schema='a'/>", 1, 1, "a schema starts with <schema>"),
        ("<!DOCTYPE x [<!ENTITY e 'ee'>]><schema name='a'>&e;</schema>", 1, None, "DOCTYPE"),
        ("", 1, 1, "no element found"),
    ],
)
def test_markup_that_does_not_parse_says_where(markup, line, column, says):
    with pytest.raises(SchemaError) as caught:
        parse_schema(markup)
    assert says in str(caught.value)
    assert caught.value.line == line
    assert column is None or caught.value.column == column


@pytest.mark.parametrize(
    ("inside", "line", "column", "says"),
    [
        ("\n<plan><rome/></plan> q", 2, 1, "'plan' has no 'rome': it has days, miami, paris"),
        ("\n  <rome/> q", 2, 3, "'travel' has no 'rome'"),
        ("<plan><miami/><paris/></plan> q", 1, 25, "alternatives"),
        ("<plan/><plan/> q", 1, 32, "selected twice"),
        ("<plan>text</plan> q", 1, 25, "text inside the module"),
        ("text <plan/>", 1, 30, "comes after text"),
        ("<plan/>", 1, 1, "no question"),
        ("<plan/><assistant>a</assistant> q", 1, 32, "history"),
        ("<plan miami='x'/> q", 1, 25, "'miami' is a module"),
        ("<plan><days/></plan> q", 1, 25, "takes a text"),
    ],
)
def test_prompts_that_do_not_fit_the_schema_say_where(schema, inside, line, column, says):
    with pytest.raises(SchemaError) as caught:
        parse_prompt(schema, f"<prompt schema='travel'>{inside}</prompt>")
    assert says in str(caught.value)
    assert (caught.value.line, caught.value.column) == (line, column)


def test_objects_that_make_no_schema():
    for make, says in [
        (lambda: Module(""), "needs a name"),
        (lambda: Module("a", Param("x", 1), Module("x")), "'a' defines 'x' twice"),
        (lambda: Param("x", 0), "a positive number"),
        (lambda: Union(), "at least one"),
        (lambda: Schema("a", Param("x", 1)), "outside a module"),
        (lambda: Schema("a", Module("m", Param("x", 1))).select("m"), "needs a value for its parameter 'x'"),
        (lambda: Schema("a", Module("m")).select("m", {"m": {}}), "selected twice"),
    ]:
        with pytest.raises(SchemaError, match=says) as caught:
            make()
        assert caught.value.line is None


def test_selections_that_do_not_fit_their_places(profile, schema):
    with pytest.raises(InputError, match="the value of 'days' has 9 tokens, its parameter has room for 4"):
        compose(profile, schema.select({"plan": {"days": "one two three four five six seven eight nine"}}))
    twice = [*schema.select("plan"), *schema.select("plan")]
    with pytest.raises(InputError, match="select modules once, in the schema's order"):
        compose(profile, twice)
    wide = Schema("wide", Module("a", Param("x", 9000, "v")), Module("b", MIAMI))
    with pytest.raises(InputError, match="positions, gaps counted"):
        compose(profile, wide.select("a", "b"))


def test_two_schemas_and_ordinary_documents_in_one_prompt(profile, schema):
    other = Schema("other", Module("a", MIAMI), Module("b", PARIS))
    prompt = compose(profile, [*schema.select("plan"), "An ordinary document, as long as need be.", *other.select("b")])
    names = [s.name for s in prompt.spans if s.kind == "span"]
    assert names[-1] == "other/b"
    assert len(names) == 5
