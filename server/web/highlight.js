// Approximate syntax highlighting: keywords, strings, numbers and comments, by rules common to most languages.

const WORDS = new Set(
  `abstract and as assert async auto await begin bool boolean break byte case catch char class const constexpr continue crate def default
  defer del delete dict do done double dyn elif else elseif end enum esac except export extends extern false fi final finally float fn for
  foreach from func function global go goto if impl implements import in include inline int interface internal is lambda let list local long
  loop match mod module move mut namespace new nil none not null nullptr object of operator or override package pass private protected pub public
  raise readonly ref require return select self short signed sizeof static str string struct super switch template then this throw throws trait
  true try tuple type typedef typeof undefined union unless unsafe unsigned until use using val var virtual void volatile when where while with
  yield`.split(/\s+/),
);
const SQL = new Set(
  `alter and as asc between by case create delete desc distinct drop else end exists from full group having in index inner insert into is join
  key left like limit not null offset on or order outer primary right select set table then union update values view when where with`.split(/\s+/),
);

const PLAIN = new Set(['text', 'txt', 'plain', 'plaintext', 'output', 'console', 'markdown', 'md', 'diff', 'log']);
const HASH = new Set(['python', 'py', 'sh', 'bash', 'shell', 'zsh', 'ruby', 'rb', 'perl', 'r', 'yaml', 'yml', 'toml', 'ini', 'make', 'makefile', 'dockerfile', 'elixir', 'julia']);
const DASHES = new Set(['sql', 'lua', 'haskell', 'hs', 'ada', 'elm']);
const MARKUP = new Set(['html', 'xml', 'svg', 'vue']);

const TEXT = String.raw`"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|${'`'}(?:[^${'`'}\\]|\\[^])*${'`'}`;
const NUMBER = String.raw`\b(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\b`;
const NAME = String.raw`[A-Za-z_$][\w$]*`;

function comments(language) {
  if (MARKUP.has(language)) {
    return '<!--[^]*?(?:-->|$)';
  }
  const line = HASH.has(language) ? '#[^\\n]*' : DASHES.has(language) ? '--[^\\n]*' : '//[^\\n]*';
  const long = ['python', 'py'].includes(language) ? `"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)` : '/\\*[^]*?(?:\\*/|$)';
  return HASH.has(language) && long.startsWith('/') ? line : `${long}|${line}`;
}

/** Returns the parts of a code block: `{ kind, text }`, where `kind` is `comment`, `text`, `number`, `word`, `call` or empty. */
export function parts(text, language) {
  const name = language.toLowerCase();
  if (name === '' || PLAIN.has(name) || text.length > 50000) {
    return [{ kind: '', text }];
  }
  const form = new RegExp(`(?<comment>${comments(name)})|(?<text>${TEXT})|(?<number>${NUMBER})|(?<word>${NAME})`, 'g');
  const found = [];
  let at = 0;
  const plain = (end) => {
    if (end > at) {
      found.push({ kind: '', text: text.slice(at, end) });
    }
  };
  for (const match of text.matchAll(form)) {
    const kind = kindOf(match, text, name);
    if (kind !== '') {
      plain(match.index);
      found.push({ kind, text: match[0] });
      at = match.index + match[0].length;
    }
  }
  plain(text.length);
  return found;
}

function kindOf({ groups, index, 0: all }, text, language) {
  if (groups.word === undefined) {
    return groups.comment !== undefined ? 'comment' : groups.text !== undefined ? 'text' : 'number';
  }
  if (MARKUP.has(language)) {
    return /<\/?$/.test(text.slice(Math.max(0, index - 2), index)) ? 'word' : '';
  }
  if (language === 'sql' ? SQL.has(all.toLowerCase()) : WORDS.has(all)) {
    return 'word';
  }
  return text[index + all.length] === '(' ? 'call' : '';
}
