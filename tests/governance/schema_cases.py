"""Short ways to compile a schema and to see what a model is told."""

from governance.canonical import JSON
from governance.schemas import SchemaProblem, ToolSchema, compile_schema


def compiled(schema: JSON) -> ToolSchema:
    result = compile_schema(schema)
    assert isinstance(result, ToolSchema), result
    return result


def reason_against(schema: JSON) -> str:
    result = compile_schema(schema)
    assert isinstance(result, SchemaProblem)
    return result.reason


def told(schema: JSON, arguments: JSON) -> list[tuple[str, str, str]]:
    return [(problem.path, problem.expected, problem.got) for problem in compiled(schema).check(arguments)]


def properties(**schemas: JSON) -> JSON:
    return {"type": "object", "properties": schemas}
