"""Records what Jinja2 prints for a grid of expressions and statements of chat templates.

    python3 tests/tools/record_jinja.py            # writes engine/tests/data/jinja.json
    python3 tests/tools/record_jinja.py --check    # compares the file with a new recording

Needs jinja2 3.1.6. The environment has the settings of `transformers`. Methods that change lists and dictionaries are
recorded with Jinja's mutable sandbox, because `transformers` refuses them. A case whose evaluation fails in
Jinja is recorded as null; the engine may fail or be lenient.
"""

import copy
import datetime
import json
import pathlib
import sys

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment

FILE = pathlib.Path(__file__).parents[2] / "engine/tests/data/jinja.json"

# Every value is combined with every test and filter.
VALUES = [
    "none", "nosuch", "true", "false", "0", "7", "-7", "1.5", "2.0", "-0.0", "1e22", "12345678901234567890",
    "'aB c'", "''", "'12'", "' -3.7 '", "'Ünï-cödé ß'", "'a\\n\\nb<&>\"\\''", "[3,1,2]", "['b','A','c']", "[]",
    "[1,'a',none]", "[[2,'x'],[1,'y']]", "{'b':1,'A':[2,{'x':none}]}", "{}", "(1,2)", "()", "range(3)",
    "messages", "messages[0]", "[{'a':1,'g':'x'},{'a':2,'g':'y'},{'a':3,'g':'x'}]",
]
TESTS = (
    "boolean callable defined undefined none number integer float string sequence mapping iterable lower upper "
    "true false escaped odd even divisibleby(2) eq(7) ne(7) gt(1) ge(7) lt(2) le(1) in([7,'12']) sameas(none) "
    "equalto('12')"
).split()
FILTERS = (
    "abs capitalize default('D') d('D',true) dictsort e escape first float int items join join('-') last length "
    "count list lower max min replace('a','X') reverse round round(1) round(-1) safe string sum title tojson "
    "tojson(indent=2) trim trim('a') unique upper wordcount striptags urlencode pprint center(9) truncate(3) "
    "truncate(5,true,'') batch(2)|list slice(2)|list groupby('g')|list map('upper')|list map(attribute='a')|list "
    "map(attribute='zz',default=0)|list map('default','q')|list map('int')|list map('length')|list select|list "
    "select('string')|list select('gt',1)|list reject|list reject('none')|list selectattr('a')|list "
    "selectattr('a','equalto',2)|list selectattr('g','in',['x'])|list rejectattr('a','gt',1)|list "
    "rejectattr('role','defined')|list sort sort(reverse=true) sort(attribute='a') sort(attribute='g,a') "
    "sort(case_sensitive=true) sum(attribute='a') sum(start=10) indent(2) indent(2,true) indent('>>') "
    "indent(width=1,blank=true) wordwrap(3) format(1) forceescape filesizeformat filesizeformat(true) xmlattr "
    "attr('a') attr('role') string|length int(9) int(default=3) int(0,16) float(9) join(',',attribute='a') "
    "first|default('F') last|default('L') max(attribute='a') min(attribute='a') unique(attribute='g')|list "
    "dictsort(by='value') dictsort(true) dictsort(reverse=true) replace('a','X',1) tojson(ensure_ascii=true) "
    "tojson(separators=(',',':')) tojson(sort_keys=true) tojson|length list|length items|list"
).split()
EXPRESSIONS = r"""
1 + 1.0
7 // 2
-7 // 2
7 // -2
-7 % 3
7 % -3
-7.5 % 2
7.5 // -2
7 / 2
4 / 2
2 ** 3
2 ** -1
2 ** 0.5
-2 ** 2
2 ** 3 ** 2
10 - 3 - 2
2 + 3 * 4
(2 + 3) * 4
'a' * 3
3 * 'a'
[1] * 2
2 * (1,)
'a' * -1
[1] + [2]
(1,) + (2,)
[1] + (2,)
'a' ~ 1 ~ none ~ true ~ 1.0 ~ [1,'x'] ~ {'a':none}
1 ~ 1e20
1e16
1e15
123456789.123456789
0.1+0.2
0.1
1e-4
0.00001
-0.0
3.0e5
100000000000000000000
123456789012345678901234567890 + 1
9223372036854775807 + 1
-9223372036854775808 - 1
-5 // 2.0
true + 1
true + true
-true
true * 3
1 == 1.0
1 == true
0 == false
'1' == 1
none == false
none == none
nosuch == nosuch
nosuch == none
nosuch == ''
[1,2] == (1,2)
[1,2] == [1,2.0]
{'a':1} == {'a':1.0}
{'a':1,'b':2} == {'b':2,'a':1}
(1,2) == (1,2)
[] == false
1 != 2
'a' < 'b'
'a' < 'B'
'Z' < 'a'
'a' <= 'a'
[1] < [2]
[1,2] < [1]
(1,2) < (1,3)
1 < 2 < 3
1 < 3 < 2
1 < 2 > 1
3 > 2 >= 2 == 2
1 in [1] in [[1]]
true < 2
1.5 > 1
'a' < 1
none < 1
not none
not []
not 'a'
none and 1
1 and 2
'' or 'x'
0 or none
[] or {} or 'z'
1 or nosuch.x.y
'a' in 'abc'
'' in 'abc'
'a' in ['a']
'a' in {'a':1}
'x' in {'a':1}
1 in (1,2)
1 in range(3)
1.0 in [1]
true in [1]
'a' in nosuch
1 in 'abc'
1 not in [1]
none in [none]
[1] in [[1]]
'a' if false
('a' if false) is defined
('a' if true else 'b')
'abc'[1]
'abc'[-1]
'abc'[5] is defined
'abc'[true]
'abc'['x'] is defined
'äöü'[1]
'abc'[1:]
'abc'[:1]
'abc'[:]
'abc'[-2:]
'abc'[:-1]
'abc'[::-1]
'abc'[5:]
'äöü'[1:2]
'abc'[none:2]
[1,2,3][::-1]
[1,2,3][-2:]
[1,2,3][0:0]
[1,2,3][5:1:-1]
(1,2,3)[1:]
(1,2,3)[::2]
'abcdef'[1:5:2]
'abcdef'[4:1:-1]
range(10)[2:4]|list
[1,2,3][1]
[1,2,3][-1]
[1,2,3][9] is defined
[1,2,3]['a'] is defined
[1,2,3].a is defined
[1,2].0
[[1,2],[3]][0][1]
{'a':1}.a
{'a':1}['a']
{'a':1}.b is defined
{'a':1}['b'] is defined
{1:'x'}[1]
{1:'x'}[1.0]
{(1,2):'x'}[(1,2)]
{'a':{'b':[5]}}.a.b[0]
{'a-b':1}['a-b']
{'a,b':1}['a,b']
{'a':1}.get('a')
{'a':1}.get('b')
{'a':1}.get('b','z')
{'a':none}.get('a','z')
{'a':1}.items()|list
{'a':1}.keys()|list
{'a':1}.values()|list
{'a':1,'b':2}.items()|length
{'items':5}.items is callable
{'items':5}['items']
{'get':1}.get is number
{'a':1}.keys is callable
{'x':1}['items'] is defined
{'x':1}['keys'] is callable
{'x':1}.items is mapping
{'items':5}.items is defined
'abc'.upper is callable
{'a':{'get':1}}.a.get is number
{'a':1}.copy()
{'a':1,'a':2}
{'b':1,'a':2}
{1:2,none:3,true:4}
{'a':1}|length
{'a':1}|list
{'a':'x','b':[1,{'c':none}]}
'a,b,,c'.split(',')
'  a  b '.split()
'a b c'.split(' ',1)
'a b c'.split(none,1)
'a b c'.rsplit(' ',1)
'a b c'.rsplit(maxsplit=1)
'a--b--c'.split('--')
'abc'.split('')
''.split()
''.split(',')
'a\tb\nc'.split()
'a b c'.split(' ')[-1]
'aXbX'.replace('X','')
'aXbX'.replace('X','-',1)
'abc'.replace('','-')
'abc'.replace('b','b'*3)
'abc'.startswith('a')
'abc'.startswith(('x','a'))
'abc'.startswith('b',1)
'abc'.endswith(('c',))
'abc'.endswith('')
'abc'.find('c')
'abc'.find('z')
'abcabc'.find('a',1)
'abcabc'.rfind('a')
'äbc'.find('c')
'abc'.index('c')
'abc'.count('b')
'aaaa'.count('aa')
'abc'.count('')
'ß'.upper()
'İ'.lower()
'ΑΣ'.lower()
'ǆ'.title()
'ß'.capitalize()
'ß'.casefold()
'hello world'.title()
"they're bill's".title()
"they're bill's"|title
'a-b (c) [d] <e>'|title
'hELLO wORLD'.capitalize()
'hELLO wORLD'|capitalize
'aBc'.swapcase()
'a-b'.partition('-')
'ab'.partition('-')
'a-b-c'.rpartition('-')
'ab'.rpartition('-')
'xxaxx'.strip('x')
'xyaxy'.strip('yx')
'xxaxx'.lstrip('x')
'xxaxx'.rstrip('x')
' \u00a0a\u2003'.strip()
' \u00a0a\u2003'|trim
'\u200ba\u200b'|trim
'\x1ca\x1f'.strip()
'xax'|trim('x')
'a'.join(['x','y'])
','.join([])
','.join({'a':1,'b':2})
','.join('abc')
','.join([1])
'a'.zfill(3)
'-7'.zfill(4)
'abc'.zfill(2)
'a'.ljust(3)~'|'
'a'.rjust(3)
'a'.rjust(3,'.')
'a'.center(5)~'|'
'ab'.center(5,'*')
'a'.center(4,'*')
'ab'|center(5)~'|'
'abc'|center(6)~'|'
'12'.isdigit()
'²'.isdigit()
'²'.isdecimal()
'½'.isnumeric()
'½'.isdigit()
''.isdigit()
'a'.isalpha()
'aé'.isalpha()
'a1'.isalnum()
' \t'.isspace()
'aé'.isascii()
'a_b'.isidentifier()
'1a'.isidentifier()
'Ab C'.istitle()
'AB'.istitle()
'A1'.isupper()
'1'.isupper()
'a b'.islower()
'a\n'.isprintable()
'a\tb'.expandtabs(4)
'abc'.removeprefix('a')
'abc'.removesuffix('c')
'abc'.removeprefix('x')
'a\nb\r\nc'.splitlines()
'a\nb\r\nc\x0bd\u2028e'.splitlines()
'a\n\nb\n'.splitlines()
'a\nb'.splitlines(true)
'%s-%d' % ('a',3)
'%s' % 'x'
'%s' % none
'%s' % 1.0
'%s' % (1,)
'%s %%' % [1]
'%s' % {'a':1}
'%r' % 'x'
'%r' % 'é\n'
'%a' % 'é'
'%d' % 3.9
'%i' % true
'%.2f' % 1.234
'%.0f' % 2.5
'%f' % 1
'%e' % 12345.678
'%g' % 0.00001234
'%g' % 123456789
'%g' % 100000
'%G' % 1e-10
'%05d' % 42
'%5d|' % 42
'%-5d|' % 42
'%+d' % 42
'% d' % 42
'%x' % 255
'%#x' % 255
'%X' % 255
'%o' % 8
'%c' % 65
'%c' % 'z'
'%5s|' % 'ab'
'%-5s|' % 'ab'
'%.1s' % 'ab'
'%*d' % (5, 42)
'%(a)s' % {'a':1}
'%(a)s-%(b)05.1f' % {'a':1,'b':2.25}
'%s %s' % 'x'
'%s' % ('a','b')
'%d' % 'x'
'100%' % ()
'%s'|format('x')
'%s %s'|format('x',1)
'%(a)s'|format(a=1)
'%.1f'|format(2.25)
'{} {}'.format('a',1)
'{0}{1}{0}'.format('a','b')
'{0:>5}|'.format('a')
'{:<5}|'.format('a')
'{:^5}|'.format('a')
'{:*^6}|'.format('a')
'{a}'.format(a=1)
'{a.b}'.format(a={'b':2})
'{a[b]}'.format(a={'b':2})
'{0[1]}'.format([5,6])
'{:.3f}'.format(1.5)
'{:.1%}'.format(0.256)
'{:,}'.format(1234567)
'{:_}'.format(1234567)
'{:,.2f}'.format(1234567.891)
'{:05d}'.format(42)
'{:+d}'.format(42)
'{:x}'.format(255)
'{:#b}'.format(5)
'{:e}'.format(1234.5)
'{:g}'.format(0.0001)
'{:d}'.format(true)
'{}'.format(true)
'{}'.format(none)
'{}'.format([1,'a'])
'{!r}'.format('a')
'{!s:>3}|'.format('a')
'{{}} {}'.format(1)
'{:{}}|'.format('a', 4)
'{:{w}}|'.format('a', w=4)
'{'.format()
'{} {}'.format(1)
[3,1].index(1)
[1,1].count(1)
(1,2,1).count(1)
(1,2).index(2)
[1].index(5)
dict(a=1,b=2)
dict([('a',1)])
dict({'a':1},b=2)
dict({'a':1},**{'b':2})
dict()
range(5,0,-2)|list
range(3)|string
range(1,3)|string
range(0,9,3)|string
range(3)
range(3)|length
range(3)[1]
range(0)|list
range(2,1)|list
namespace({'a':2}).a
namespace(a=1)|string
namespace(a=1).b is defined
cycler is defined
joiner is defined
cycler('a','b').next()
cycler('a','b').current
joiner(',')() ~ 'x'
[none,true,1.0,'a\'b',"q\"",'\n','é','\x01','\u200b',"a'b\"c"]|string
['\t\r\\', '\x7f', '\u00a0', '\u0301', '\U0001F600', '\ue000']|string
{1:2}|string
{1:2,none:3,true:4}|tojson
{1.5:1}|tojson
1e22|tojson
1e22
1e-5
1.0|tojson
1e-7|tojson
-0.0|tojson
12345678901234567890|tojson
'é\u2028<&>\x7f/'|tojson
'\x00\x1f"\\'|tojson
(1,2)|tojson
[]|tojson
{}|tojson(indent=2)
[[],{}]|tojson(indent=2)
[1,[2,{'a':3}]]|tojson(indent=1)
{'b':1,'a':[1,2]}|tojson(indent=4,sort_keys=true)
[1,2]|tojson(indent=0)
{'b':1}|tojson(indent='\t')
{'a':1,'b':2}|tojson(separators=(',',':'))
{'a':[1]}|tojson(indent=2,separators=(';','='))
nosuch.a is defined
nosuch
nosuch ~ 'x'
nosuch|default
nosuch.x|default('y')
nosuch['x']
nosuch is string
nosuch|length
nosuch|list
nosuch|join
nosuch|upper
nosuch + 'a'
nosuch()
none.a is defined
none['a'] is defined
none()
messages[0].nope is defined
messages[0]['nope'] is none
messages[0].content.nope is defined
messages[5] is defined
messages[-1].role
messages[0].items()|list
messages[0]|string
messages|tojson
messages|map(attribute='role')|join(',')
messages|selectattr('role','eq','user')|map(attribute='content')|first
messages|rejectattr('role','equalto','system')|list|length
messages|last|string
(messages|last)['role']
(messages|first).role
messages|length - 1
messages|length > 0
messages + [{'role':'x'}]
messages[1:]|length
messages[:-1]|length
messages is sequence and messages is not mapping and messages is not string
messages[0] is mapping
messages[0].content is string
(messages[0].content is string) and true
'a' is in 'abc'
'a' is not in 'abc'
1 is sameas 1
true is sameas true
1 is sameas true
[] is sameas []
not 1 is none
1 is not none
1 is odd and 2 is even
2 is divisibleby 2
7 is divisibleby(3)
1 is eq 1
1 is gt(0)
'a' is eq('a')
'upper' is filter
'nosuch' is filter
'defined' is test
'x' is test
1 if 0 else 2 if 0 else 3
[1,2,3]|sum
[1.5,2]|sum
[[1,2],[3]]|sum(start=[])
['a','b']|sum(start='')
'a' ~ 'b' * 2
-1|abs
(-1)|abs
-1.5|abs
2.5|round
3.5|round
-2.5|round
2.675|round(2)
1234.5|round(-2)
1250|round(-2)
1350|round(-2)
1.5|round(0,'floor')
1.2|round(0,'ceil')
1.25|round(1,'floor')
7|round
'1.9'|int
'12'|int
' 12 '|int
'1_000'|int
'007'|int
'-5'|int
'0x1A'|int(0,16)
'1A'|int(0,16)
'0b11'|int(0,2)
'0x1A'|int
'abc'|int
'abc'|int(5)
''|int
none|int
1.9|int
-1.9|int
'1e3'|int
'1e3'|float
'inf'|float
'nan'|float
'x'|float(2.5)
' 1.5 '|float
7|float
[]|int
true|int
1_000
0x1f
0b11
0o17
1_0.5
'\x41\u00e9'
'\U0001F600'
'\u00e9' == 'é'
'\a\b\f\v\0'|tojson
'\101\7'
'\q'
'\/'
'\\n'
'\''
"\""
"'"
'"'
"a" "b"
'a\
b'
'tab\t|'
[]|first is defined
[]|last is defined
'abc'|first
'abc'|last
{'a':1}|first
'x'|list
'👩‍👩‍👧'|list|length
'👩‍👩‍👧'|length
'é'|length
'👩‍👩‍👧'|reverse|length
{'b':1,'a':2}|dictsort
{'b':1,'A':2}|dictsort
{'b':1,'A':2}|dictsort(true)
{'b':1,'a':2}|dictsort(by='value')
{'b':1,'a':2}|dictsort(reverse=true)
{'b':1,'a':2}|items|list
[('a',1)]|list
(1,)|string
()|string
[1,]
{'a':1,}
(1,2)[0]
true|string ~ none|string
[1,2,3]|map('string')|join('-')
['a','b']|map('upper')|join
['a',' b ']|map('trim')|list
[1,2]|map('default', 3)|list
['ab','c']|map('length')|list
['a-b']|map('replace','-','+')|list
[{'r':'a'},{'r':'b'}]|selectattr('r','equalto','b')|list
[{'r':'a'},{'r':'b'}]|selectattr('r','==','b')|list
[{'r':{'x':1}}]|map(attribute='r.x')|list
[{'r':[7]}]|map(attribute='r.0')|list
[{'r':'a'}]|rejectattr('r','in',['a'])|list
[{'r':1},{}]|selectattr('r','defined')|list
[{'r':1},{}]|selectattr('r')|list
[1,none,2]|select|list
[1,2]|select('gt',1)|list
[1,2,3,4]|select('even')|list
[1,2,3]|reject('odd')|list
[1,2,3]|batch(2)|list
[1,2,3]|batch(2,0)|list
[1,2,3,4,5]|slice(2)|list
[1,2,3]|slice(2,'x')|list
[{'g':1},{'g':2},{'g':1}]|groupby('g')|list
([{'g':1},{'g':2}]|groupby('g'))[0].grouper
([{'g':1},{'g':2}]|groupby('g'))[0].list
[1,2,2,1]|unique|list
['a','A']|unique|list
['a','A']|unique(true)|list
[3,1,2]|sort|join
['b','A','c']|sort|join
['b','A','c']|sort(case_sensitive=true)|join
[3,1,2]|sort(reverse=true)
[{'a':2},{'a':1}]|sort(attribute='a')
[(2,'a'),(1,'b')]|sort
[1,'a']|sort
'abc'|reverse
'abc'|sort
'a b  c'|wordcount
'<b>x</b>'|striptags
'<p>a <!-- c --> b &amp; c</p>'|striptags
'<b>'|e
'<b>"\''|e
'<b>'|escape ~ '<'
('<b>'|safe) ~ '<'
'<b>'|e|e
'<b>'|forceescape
{'a':'<'}|xmlattr
{'a':none,'b':1}|xmlattr
'a b&c/d?é'|urlencode
{'a b':'c&d'}|urlencode
[('a',1)]|urlencode
1000000|filesizeformat
1|filesizeformat
999|filesizeformat
1024|filesizeformat(true)
'abcdef ghi'|truncate(5)
'abcdefghij klm'|truncate(9)
'abc def ghi jkl mno'|truncate(10,true)
'abc def ghi jkl mno'|truncate(10,false,'~',0)
{'a':1}|pprint
'a'|pprint
'x'|default('y')
''|default('y')
''|default('y',true)
none|default('y')
none|default('y',boolean=true)
[1,'a']|join(',')
[1,2]|join
[{'a':1},{'a':2}]|join(',',attribute='a')
['a']|join('-')
{'a':1,'b':2}|join(',')
'abc'|join('-')
[1,2,3]|min ~ [1,2]|max
[]|max is defined
['b','A']|max
[{'a':1},{'a':3}]|max(attribute='a')
'a'|center(5) ~ '|'
1|string ~ 2
'a\nb'|indent(2)
'a\nb'|indent(2,first=true)
'a\n\nb'|indent(2,blank=true)
'a\n\nb\n'|indent(2)
'a\nb'|indent
'a\nb'|indent('> ')
'a bc def'|wordwrap(4)
'abcdefgh'|wordwrap(3)
'a b\nc d'|wordwrap(3)
'aXbX'|replace('X','-')
'aXbX'|replace('X','-',1)
1|replace(1,2)
'aB'|lower
'aB'|upper
5|upper
true|lower
varargs is defined
caller is defined
true is boolean
1 is boolean
1 is number and true is number
true is integer
1.0 is integer
1.0 is float
'a' is sequence
{} is sequence
{} is iterable
none is iterable
none is sequence
nosuch is iterable
1 is iterable
'x' is iterable
nosuch is callable
range is callable
dict is callable
'a' is callable
'A' is upper
'a1' is lower
1 is lower
'a' == 'a' == 'a'
{'a':1}.a.b is defined
not not 1
- 1
1 - -1
'a'+'b'
'a'+1
1+'a'
none+'a'
[1]+nosuch
1 ~ '' is string
1 // 0
1 % 0
loop is defined
raise_exception is callable
strftime_now('%Y') is string
tools is none
documents is none
bos_token ~ eos_token
add_generation_prompt
""".strip("\n").split("\n")
# A literal may contain a line break.
_joined, EXPRESSIONS = EXPRESSIONS, []
for _line in _joined:
    if EXPRESSIONS and EXPRESSIONS[-1].endswith("\\") and not EXPRESSIONS[-1].endswith("\\\\'"):
        EXPRESSIONS[-1] += "\n" + _line
    else:
        EXPRESSIONS.append(_line)

STATEMENTS = [
    "{% set x %}a{{ 1 }}{% endset %}[{{ x }}]", "{% set x | upper %}ab{% endset %}[{{ x }}]",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = [3,4] %}{{ a }}{{ b }}",
    "{% set x = 1, 2 %}{{ x }}", "{% set (a, b) = (1, 2) %}{{ a }}{{ b }}",
    "{% for a, b in [(1,2)] %}{{ a }}{{ b }}{% endfor %}", "{% for k, v in {'a':1}.items() %}{{ k }}{{ v }}{% endfor %}",
    "{% for k, v in {'b':1,'a':2}|dictsort %}{{ k }}{{ v }}{% endfor %}",
    "{% for k, v in {'b':1,'a':2}|items %}{{ k }}{{ v }}{% endfor %}",
    "{% for a, (b, c) in [(1,(2,3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for i in [1,2,3] if i != 2 %}{{ loop.index }}{{ loop.last }}{{ loop.length }}{% endfor %}",
    "{% for i in [] %}x{% else %}none{% endfor %}", "{% for i in [1] if i > 1 %}x{% else %}none{% endfor %}",
    "{% for i in [1,2,3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in [1,2,3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in [1,2] %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{{ loop.previtem }}{{ loop.nextitem }}{% endfor %}",
    "{% for i in [1,2,2] %}{{ loop.changed(i) }}{% endfor %}", "{% for i in [[1],[1],[2]] %}{{ loop.changed(i) }}{% endfor %}",
    "{% for i in [1,2,3] %}{{ loop.cycle('a','b') }}{% endfor %}",
    "{% for i in [1,2] %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}",
    "{% for i in [1,[2,[3]]] recursive %}{% if i is number %}{{ i }}{% else %}({{ loop(i) }}){% endif %}{% endfor %}",
    "{% for i in [1,2] recursive %}{{ loop.depth }}{{ loop([]) }}{% endfor %}",
    "{% for i in range(2) %}{% for j in range(2) %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for i in range(2) %}{% set outer = loop %}{% for j in range(2) %}{{ outer.index }}{{ loop.index }}{% endfor %}{% endfor %}",
    "{% for c in 'ab' %}{{ c }},{% endfor %}", "{% for k in {'a':1,'b':2} %}{{ k }}{% endfor %}",
    "{% for i in x %}{{ i }}{% endfor %}e", "{% for i in none %}{% endfor %}", "{% for i in 5 %}{% endfor %}",
    "{% for m in messages %}{{ loop.index }}{{ m.role }}{{ m['content'] }}{% endfor %}",
    "{% for m in messages[::-1] %}{{ m.role }}{% endfor %}", "{% for m in messages|reverse %}{{ m.role }}{% endfor %}",
    "{% macro m(a, b=2, *, c=3) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}",
    "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}",
    "{% macro m(a, b=a ~ '!', c=b ~ '?') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }},{{ m(1,2) }},{{ m(1,c=3) }}",
    "{% macro m(a=1, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(b=5) }}{{ m(3) }}{{ m() }}",
    "{% macro m(a, b=none) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, false) }}",
    "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}hi{% endcall %}",
    "{% macro m(x) %}{{ caller(x) }}{% endmacro %}{% call(y) m(5) %}<{{ y }}>{% endcall %}",
    "{% macro m(a) %}{{ a is defined }}{% endmacro %}{{ m() }}", "{% macro m(a) -%}  x  {%- endmacro %}[{{ m(1) }}]",
    "{{ m is defined }}{% macro m() %}{% endmacro %}{{ m is defined }}{{ m is callable }}",
    "{% macro f(n) %}{% if n %}{{ n }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% macro a(n) %}{% if n %}a{{ b(n-1) }}{% endif %}{% endmacro %}{% macro b(n) %}{% if n %}b{{ a(n-1) }}{% endif %}{% endmacro %}{{ a(3) }}",
    "{% macro m() %}{{ x }}{% endmacro %}{% set x = 5 %}{{ m() }}",
    "{% set x = 1 %}{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}",
    "{% macro m() %}a{% endmacro %}{{ m()|length }}{{ m() + 'b' }}{{ m() is string }}{{ m.name }}",
    "{% macro m(a) %}{% set a = a + 1 %}{{ a }}{% endmacro %}{{ m(1) }}",
    "{% macro m(items) %}{% for i in items %}{{ i }}{% endfor %}{% endmacro %}{{ m([1,2]) }}{{ m(items=[3]) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(1,2) }}", "{% macro m(a) %}{% endmacro %}{{ m(b=2) }}",
    "{% filter upper %}ab{% endfilter %}", "{% filter replace('a','b')|upper %}ab{% endfilter %}",
    "{% filter trim %}  a  {% endfilter %}|", "{% filter indent(2) %}a\nb{% endfilter %}",
    "{% with x=1, y=2 %}{{ x }}{{ y }}{% endwith %}{{ x is defined }}", "{% with %}{% set z = 1 %}{% endwith %}{{ z is defined }}",
    "{% set x=1 %}{% if true %}{% set x=2 %}{% endif %}{{ x }}", "{% set x=1 %}{% for i in [1] %}{% set x=2 %}{% endfor %}{{ x }}",
    "{% set ns=namespace(x=1) %}{% for i in [1,2] %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
    "{% set ns=namespace() %}{{ ns.y is defined }}{% set ns.y=[] %}{% set ns.y = ns.y + [1] %}{{ ns.y }}",
    "{% set ns=namespace(a='x') %}{% set ns.a %}b{{ ns.a }}{% endset %}{{ ns.a }}",
    "{% set ns=namespace(found=false) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }}",
    "{% set d = {'a':1} %}{% set d.b = 2 %}{{ d }}", "{% set d = dict(a=1) %}{% set d = dict(d, **{'b': 2}) %}{{ d }}",
    "{% set f = [1,2] %}{{ range(*f)|list }}", "{% macro m(a,b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1,2]) }}{{ m(**{'a':3,'b':4}) }}{{ m(5, **{'b':6}) }}",
    "{% raw %}{{ x }}{% endraw %}", "{%- raw -%} {{ x }} {%- endraw -%}", "a {% raw %} {% if %} {% endraw %} b",
    "{# c #}a{#- b -#} c ", "a {#- x #} b", "a\n  {# x #}\nb", "a {# x #}\nb", "{# {{ x }} {% if %} #}b",
    "  {% if true %}  a\n  {% endif %}\n b\n", "  {%+ if true %}a{% endif %}", "{% if true +%}\na{% endif %}",
    "{% if true -%}\n\n a {%- endif %} b", "{{ 'a' -}}  \n {{- 'b' }}", "{{- 'a' }}\n{{ 'b' -}}\n", "  {{ 'a' }}\n  {{ 'b' }}",
    "a\n{% if true %}\nb\n{% endif %}\nc\n\n", "\n\na\n", "a\n", "a\n\n", "{{ 'x' }}\n{{ 'y' }}\n", "\t{% set x = 1 %}\t\nb",
    "a{% set x=1 %}\n\nb", "x {% set x=1 %}\n b", "{% set x=1 %}  \nb", "{%if true%}a{%elif false%}b{%else%}c{%endif%}",
    "{% if 1 %}{% elif 2 %}{% endif %}x", "{% if false %}a{% elif true %}b{% else %}c{% endif %}", "{{ [1,2,\n3] }}", "{{ {'a':\n1} }}",
    "{{ 'a\nb' }}", "{{ \"a\r\nb\" }}", "a\r\nb", "a\r\n{% if true %}\r\nb\r\n{% endif %}\r\nc", "a\rb", "{% if true %}\ra{% endif %}",
    "{{ 'a' }}\r\n", "{{ 'a' }}\n\r\n", "a\r\n\r\n", "{{ '\\r\\n' }}", "{% set x %}a\r\nb{% endset %}{{ x|length }}",
    "{% block a %}b{% endblock %}", "{% autoescape true %}{{ '<' }}{{ '<'|safe }}{% endautoescape %}", "{% autoescape false %}{{ '<' }}{% endautoescape %}",
    "{% trans %}a{% endtrans %}", "{% debug %}", "{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}", "{% nosuch %}",
    "{% generation %}a{% endgeneration %}", "{%- generation -%} a {%- endgeneration -%} b",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "{{ messages[0]['content'][0] }}", "{{ messages[0].content[:1] }}", "{{ messages[0].get('name') is none }}", "{{ messages[0].get('name', 'n') }}",
    "{{ messages[0].x.y }}", "{{ x.y }}", "{{ x['y'] }}", "{{ x() }}", "{{ none() }}", "{{ none.x }}", "{{ messages[99].x }}", "{{ (1).x is defined }}",
    "{{ x|default }}", "{{ x is not defined and true }}", "{{ 1 if x }}", "{{ x + 'a' if x else 'b' }}", "{{ x|string }}|{{ x|trim }}",
    "{{ documents is defined }}{{ documents is none }}{{ tools is defined }}{{ tools is none }}{{ tools }}",
    "{{ add_generation_prompt }}{{ add_generation_prompt is true }}", "{{ raise_exception is defined }}{{ raise_exception('x') if false }}",
    "{% set messages = messages[1:] %}{{ messages|length }}", "{{ '%s'|format(1) }}", "{{ \"%s: %s\" % ('a', 'b') }}", "{{ 'a' 'b' }}",
    "{{ not messages }}", "{{ messages and 1 }}", "{{ (messages|length) % 2 == 1 }}", "{{ loop.index0 % 2 if loop is defined else 'z' }}",
    "{{ messages[0].content.split('H')[-1].lstrip('\\n') }}", "{{ messages[0].role + ':' ~ messages[0].content }}", "{{ 'a'|replace('a', none) }}",
    "{{ 'a' * 0 }}|", "{{ '-' * 5 }}", "{%set x=1%}{{x}}", "{{x|d(1)}}{{- 2 -}}", "{% if messages[0].role=='user' and not(messages[0].content is none) %}ok{% endif %}",
    "{% if 'a' not in ['b'] %}ok{% endif %}", "{% if not 'a' in ['b'] %}ok{% endif %}", "{% if messages[0].role in ['user','x'] %}ok{% endif %}",
    "{% set x = {} %}{% set y = x.a %}{{ y is defined }}{{ y }}", "{% set x = [] %}{{ x[0] is defined }}{{ x[-1] is defined }}",
    "{% set schema = {'type':'array'} %}{% if schema['items'] is mapping %}a{% else %}b{% endif %}{{ schema['items'] is defined }}",
    "{{ {'role': 'a', **{}} }}", "{{ [*[1]] }}", "{{ lambda: 1 }}", "{{ 'a' if a else 'b' if b else 'c' }}",
    "{% set c = cycler('a','b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set _ = c.reset() %}{{ c.next() }}",
    "{% set j = joiner('|') %}{{ j() }}a{{ j() }}b{{ j() }}", "{% if tools is iterable and tools | length > 0 %}t{% else %}n{% endif %}",
    "{% set f = '%s' %}{{ f % messages[0].role }}", "{% for g in [{'k':1,'v':2},{'k':1,'v':3}]|groupby('k') %}{{ g.grouper }}{% for x in g.list %}{{ x.v }}{% endfor %}{% endfor %}",
    "{% set a = [1] %}{% set b = a %}{{ b == a }}", "{{ [1,2]|map('string')|map('replace','1','x')|join }}", "{% if (messages|last).role == 'user' %}u{% endif %}",
]
# Methods that change their object.
CHANGES = [
    "{% set l=[] %}{% set _ = l.append(1) %}{{ l }}", "{% set l=[1,2,3] %}{{ l.pop() }}{{ l.pop(0) }}{{ l }}", "{{ [1].pop() }}", "{{ [].pop() }}",
    "{% set l=[2] %}{% set _ = l.insert(0,1) %}{% set _ = l.extend([3,4]) %}{{ l }}", "{% set l=[2,1] %}{% set _ = l.sort() %}{{ l }}",
    "{% set l=[2,1,3] %}{% set _ = l.sort(reverse=true) %}{{ l }}", "{% set l=[2,1] %}{% set _ = l.reverse() %}{{ l }}",
    "{% set l=[2,1] %}{% set _ = l.remove(2) %}{{ l }}", "{% set l=[2,1] %}{% set _ = l.clear() %}{{ l }}", "{{ [1].append(2) }}",
    "{% set d={'a':1} %}{% set _ = d.update({'b':2}) %}{{ d }}", "{% set d={'a':1} %}{% set _ = d.update(a=3, c=4) %}{{ d }}",
    "{% set d={'a':1} %}{{ d.pop('a') }}{{ d }}{{ d.pop('x', 5) }}", "{% set d={'a':1} %}{{ d.setdefault('a', 5) }}{{ d.setdefault('b', 6) }}{{ d }}",
    "{% set d={'a':1,'b':2} %}{{ d.popitem() }}{{ d }}", "{% set d={'a':1} %}{% set _ = d.clear() %}{{ d }}", "{{ {}.pop('a') }}",
    "{% set a=[1] %}{% set b=a %}{% set _ = b.append(2) %}{{ a }}", "{% set a=[1] %}{% set b=a.copy() %}{% set _ = b.append(2) %}{{ a }}{{ b }}",
    "{% for i in [1,2] %}{% set l = [] %}{% set _ = l.append(i) %}{{ l }}{% endfor %}", "{% macro m(l=[]) %}{% set _ = l.append(1) %}{{ l }}{% endmacro %}{{ m() }}",
    "{% set ns=namespace(a={}, l=[]) %}{% set _ = ns.a.update({'x':1}) %}{% for i in range(3) %}{% set _ = ns.l.append(i) %}{% endfor %}{{ ns.a }}{{ ns.l }}",
    "{% set l=[1,2] %}{% if l.append(3) %}x{% endif %}{{ l|length }}", "{% set _ = messages.append({'role':'x'}) %}{{ messages|length }}",
    "{% set _ = messages[0].update({'role':'y'}) %}{{ messages[0].role }}", "{% set a=[[]] %}{% set _ = a[0].append(1) %}{{ a }}",
    "{% set i=[] %}{% set o=[i,(i,),{'i':i}] %}{% set _ = i.append(1) %}{{ o }}", "{{ [range(2), namespace(a=1), dict(b=2)] }}",
    "{% set d={'l':[]} %}{% set _ = d.l.append(1) %}{% set _ = d['l'].append(2) %}{{ d }}",
]
MESSAGES = [{"role": "user", "content": "Hi"}]


class Generation(jinja2.ext.Extension):
    """The tag that marks the output of a model; it prints its contents."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_contents"), [], [], body).set_lineno(line)

    def _contents(self, caller):
        return caller()


def environment(kind):
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = kind(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return env


def rendered(env, source):
    """Returns the text, or None if Jinja fails. Texts with addresses of objects count as failures."""
    variables = dict(messages=copy.deepcopy(MESSAGES), tools=None, documents=None, add_generation_prompt=True, bos_token="<s>", eos_token="</s>")
    try:
        text = env.from_string(source).render(**variables)
        text.encode()
    except Exception:
        return None
    return None if " at 0x" in text or "<class " in text or "<function " in text else text


def recording():
    fixed, free = environment(ImmutableSandboxedEnvironment), environment(SandboxedEnvironment)
    grid = {}
    for test in TESTS:
        grid["is " + test] = [rendered(fixed, "{{ (%s) is %s }}" % (value, test)) for value in VALUES]
    for filter in FILTERS:
        grid["|" + filter] = [rendered(fixed, "{{ (%s)|%s }}" % (value, filter)) for value in VALUES]
    cases = [["{{ %s }}" % expression, rendered(fixed, "{{ %s }}" % expression)] for expression in EXPRESSIONS]
    cases += [[source, rendered(fixed, source)] for source in STATEMENTS]
    cases += [[source, rendered(free, source)] for source in CHANGES]
    return {"jinja2": jinja2.__version__, "values": VALUES, "grid": grid, "cases": cases}


def text(recorded):
    compact = lambda value: json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    grid = ",\n".join(compact(name) + ":" + compact(row) for name, row in recorded["grid"].items())
    cases = ",\n".join(compact(case) for case in recorded["cases"])
    head = ",\n".join(compact(key) + ":" + compact(recorded[key]) for key in ("jinja2", "values"))
    return "{%s,\n\"grid\":{\n%s\n},\n\"cases\":[\n%s\n]}\n" % (head, grid, cases)


if __name__ == "__main__":
    new = text(recording())
    if "--check" in sys.argv[1:]:
        sys.exit(0 if FILE.read_text() == new else "the recording differs")
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(new)
    print(f"{FILE}: {len(new)} bytes")
