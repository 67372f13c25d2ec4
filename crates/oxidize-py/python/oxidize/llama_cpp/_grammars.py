"""Grammars in GBNF, by the names that llama-cpp-python gives such grammars."""

from __future__ import annotations

_JSON_RULES = r"""
object    ::= "{" space ( member ( "," space member )* )? "}" space
member    ::= string ":" space value
array     ::= "[" space ( value ( "," space value )* )? "]" space
value     ::= object | array | string | number | literal
literal   ::= ( "true" | "false" | "null" ) space
string    ::= "\"" character* "\"" space
character ::= [^"\\\x00-\x1F\x7F] | "\\" ( ["\\/bfnrt] | "u" [0-9a-fA-F]{4} )
number    ::= "-"? ( "0" | [1-9] [0-9]{0,15} ) ( "." [0-9]{1,15} )? ( [eE] [-+]? [0-9]{1,3} )? space
# Bounded: small models like to write nothing else.
space     ::= [ \t\n]{0,20}
"""

# An object of JSON.
JSON_GBNF = "root      ::= object" + _JSON_RULES

# An array of JSON.
JSON_ARR_GBNF = "root      ::= array" + _JSON_RULES

# Lines of a bulleted list.
LIST_GBNF = r"""
root ::= item+
item ::= "- " [^\r\n\x0B\x0C\x85\u2028\u2029]+ "\n"
"""

# Equations, a line each: an expression, and the number or name that it equals.
ARITHMETIC_GBNF = r"""
root     ::= equation+
equation ::= sum space "=" space operand "\n"
sum      ::= product ( space [-+] space product )*
product  ::= operand ( space [*/] space operand )*
operand  ::= number | name | "-" operand | "(" space sum space ")"
number   ::= [0-9]{1,15} ( "." [0-9]{1,15} )?
name     ::= [a-zA-Z_] [a-zA-Z0-9_]{0,31}
space    ::= " "?
"""

# Functions of a small part of C: scalars, conditions, loops and calls.
C_GBNF = r"""
root        ::= function ( "\n" function )*
function    ::= type " " name "(" ( parameter ( ", " parameter )* )? ") " block
parameter   ::= type " " name
type        ::= "int" | "float" | "double" | "char" | "void"
block       ::= "{" space ( statement space )* "}"
statement   ::= declaration | assignment | call ";" | return | if | while | for | block | comment
declaration ::= type " " name ( space "=" space value )? ";"
assignment  ::= set ";"
set         ::= name space "=" space value
return      ::= "return" ( " " value )? ";"
if          ::= "if" space "(" value ")" space block ( space "else" space ( if | block ) )?
while       ::= "while" space "(" value ")" space block
for         ::= "for" space "(" set ";" space value ";" space set ")" space block
comment     ::= "//" [^\n]* "\n"
value       ::= term ( space operator space term )*
operator    ::= "==" | "!=" | "<=" | ">=" | "<" | ">" | "&&" | "||" | "+" | "-" | "*" | "/" | "%"
term        ::= number | text | call | name | "(" value ")" | "-" term | "!" term
call        ::= name "(" ( value ( "," space value )* )? ")"
name        ::= [a-zA-Z_] [a-zA-Z0-9_]{0,31}
number      ::= [0-9]{1,10} ( "." [0-9]{1,10} )?
text        ::= "\"" ( [^"\\\n] | "\\" [nt0"\\] )* "\""
space       ::= [ \t\n]{0,20}
"""

# Moves of a game of chess in algebraic notation, numbered. Whether a move is possible is not checked.
CHESS_GBNF = r"""
root     ::= "1. " move " " move "\n" ( number ". " move ( " " move )? "\n" )*
number   ::= [1-9] [0-9]{0,2}
move     ::= ( pawn | piece | castling ) [+#]?
pawn     ::= ( [a-h] "x" )? square ( "=" [NBRQ] )?
piece    ::= [NBRQK] [a-h]? [1-8]? "x"? square
castling ::= "O-O" "-O"?
square   ::= [a-h] [1-8]
"""

# Words of the Latin alphabet with the punctuation of English.
ENGLISH_GBNF = r"""
root  ::= word ( [ \t\n]{1,2} word )*
word  ::= ["'(]? [a-zA-Z0-9] [a-zA-Z0-9'’-]{0,30} [)"']? [.,;:!?]{0,3}
"""

# Characters of Japanese: kana, kanji and their punctuation.
JAPANESE_GBNF = r"""
root      ::= character+ ( [ \t\n] character+ )*
character ::= hiragana | katakana | kanji | mark | number
hiragana  ::= [\u3041-\u309F]
katakana  ::= [\u30A1-\u30FF]
kanji     ::= [\u4E00-\u9FFF\u3005-\u3007]
mark      ::= [\u3001-\u3003\u3008-\u3011\uFF01-\uFF0F\uFF1A-\uFF1F]
number    ::= [0-9\uFF10-\uFF19]
"""
