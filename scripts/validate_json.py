#!/usr/bin/env python3
"""Validate JSON texts against their schemas with the jsonschema package.

Reads lines of JSON on standard input, each `{"schema": …, "texts": ["…", …]}`, and prints one line for each
text that is not JSON or not valid, with the reason. The grammar tests call this script.
"""

import json
import sys
from decimal import Decimal

import jsonschema


def is_exact_multiple(error: jsonschema.ValidationError) -> bool:
    """True if a number is a multiple in decimal arithmetic; the package divides binary floats, which is inexact."""
    if error.validator != "multipleOf":
        return False
    number, divisor = (Decimal(json.dumps(value)) for value in (error.instance, error.validator_value))
    return number % divisor == 0


def main() -> None:
    valid = 0
    for line in sys.stdin:
        case = json.loads(line)
        schema = case["schema"]
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        validator = kind(schema, format_checker=kind.FORMAT_CHECKER)
        for text in case["texts"]:
            try:
                errors = validator.iter_errors(json.loads(text))
                problem = next((error.message for error in errors if not is_exact_multiple(error)), None)
            except json.JSONDecodeError as error:
                problem = f"not JSON: {error}"
            if problem is None:
                valid += 1
            else:
                print(json.dumps({"schema": schema, "text": text, "problem": problem}))
    print(valid, file=sys.stderr)


main()
