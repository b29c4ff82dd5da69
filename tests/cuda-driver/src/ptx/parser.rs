//! Parses tokens to a syntax tree. Unknown directives are errors.

use super::lexer::{Token, tokens};
use super::{Function, Item, Module, Operand, PtxError, Space, Statement, Variable};

type Result<T> = std::result::Result<T, PtxError>;

/// Parses a PTX module.
pub fn parse(text: &str) -> Result<Module> {
    let mut parser = Parser {
        tokens: tokens(text)?,
        at: 0,
    };
    let mut module = Module::default();
    while parser.at < parser.tokens.len() {
        parser.directive(&mut module)?;
    }
    if module.target == 0 {
        return Err(PtxError::new(1, "the module has no `.target`"));
    }
    Ok(module)
}

struct Parser {
    tokens: Vec<(u32, Token)>,
    at: usize,
}

/// Parses directives of modules and function bodies.
impl Parser {
    fn directive(&mut self, module: &mut Module) -> Result<()> {
        let line = self.line();
        let word = self.word()?;
        match word.as_str() {
            ".version" => {
                let Token::F64(bits) = self.next()? else {
                    return Err(PtxError::new(line, "invalid `.version`: expected a number such as 8.0"));
                };
                let tenths = (f64::from_bits(bits) * 10.0).round() as u32;
                module.version = (tenths / 10, tenths % 10);
            }
            ".target" => {
                let word = self.word()?;
                (module.target, module.is_specific) = (target(line, &word)?, word.ends_with('a'));
                while self.eat(',') {
                    self.word()?;
                }
            }
            ".address_size" => {
                if self.next()? != Token::Int(64) {
                    return Err(PtxError::new(line, "unsupported `.address_size`: expected 64"));
                }
            }
            // Linkage has no effect because modules are not linked.
            ".visible" | ".weak" | ".extern" | ".common" => {}
            ".entry" | ".func" => {
                if let Some(function) = self.function(word == ".entry")? {
                    module.functions.push(function);
                }
            }
            ".global" | ".const" | ".shared" => {
                let space = space(&word).unwrap_or(Space::Global);
                self.variables(space, &mut |v| module.variables.push(v))?;
            }
            ".pragma" => self.skip_to_semicolon()?,
            _ => return Err(PtxError::new(line, format!("unknown directive `{word}`"))),
        }
        Ok(())
    }

    /// Parses a function; `None` for a declaration without a body.
    fn function(&mut self, is_entry: bool) -> Result<Option<Function>> {
        let mut function = Function {
            line: self.line(),
            is_entry,
            ..Function::default()
        };
        if self.peek_sign('(') {
            function.returns = self.params()?;
        }
        function.name = self.word()?;
        if self.peek_sign('(') {
            function.params = self.params()?;
        }
        loop {
            if self.eat(';') {
                return Ok(None);
            }
            if self.eat('{') {
                function.body = self.body()?;
                return Ok(Some(function));
            }
            self.function_directive(&mut function)?;
        }
    }

    fn function_directive(&mut self, function: &mut Function) -> Result<()> {
        let (line, word) = (self.line(), self.word()?);
        match word.as_str() {
            ".maxntid" | ".reqntid" => {
                function.max_threads = Some(self.product()?);
                function.exact_threads = word == ".reqntid";
            }
            // Hints for register allocation have no effect.
            ".minnctapersm" | ".maxnreg" | ".maxnctapersm" => {
                self.product()?;
            }
            ".noreturn" => {}
            ".pragma" => self.skip_to_semicolon()?,
            _ => return Err(PtxError::new(line, format!("unknown directive `{word}`"))),
        }
        Ok(())
    }

    /// Parses integers separated by commas and returns their product.
    fn product(&mut self) -> Result<u32> {
        let mut product = 1u32;
        loop {
            product = product.saturating_mul(self.integer()?);
            if !self.eat(',') {
                return Ok(product);
            }
        }
    }

    fn params(&mut self) -> Result<Vec<Variable>> {
        self.expect('(')?;
        let mut found = Vec::new();
        while !self.eat(')') {
            let (line, word) = (self.line(), self.word()?);
            if word != ".param" {
                return Err(PtxError::new(
                    line,
                    format!("unsupported parameter space: expected `.param`, found `{word}`"),
                ));
            }
            found.push(self.variable(Space::Param)?);
            self.eat(',');
        }
        Ok(found)
    }

    /// Parses a body up to the closing brace.
    fn body(&mut self) -> Result<Vec<Item>> {
        let mut items = Vec::new();
        while !self.eat('}') {
            if self.eat('{') {
                items.push(Item::Scope(self.body()?));
            } else {
                self.item(&mut items)?;
            }
        }
        Ok(items)
    }

    fn item(&mut self, items: &mut Vec<Item>) -> Result<()> {
        let line = self.line();
        if self.peek_sign('@') {
            items.push(Item::Statement(self.statement()?));
            return Ok(());
        }
        let is_label = matches!(self.tokens.get(self.at + 1), Some((_, Token::Sign(':'))));
        let Some((_, Token::Word(word))) = self.tokens.get(self.at) else {
            return Err(self.unexpected("an instruction"));
        };
        let word = word.clone();
        if is_label {
            self.at += 2;
            return self.label(line, word, items);
        }
        match word.as_str() {
            ".reg" => self.registers(items)?,
            ".shared" | ".local" | ".param" => {
                self.at += 1;
                let space = space(&word).unwrap_or(Space::Local);
                self.variables(space, &mut |v| items.push(Item::Variable(v)))?;
            }
            ".pragma" => self.skip_to_semicolon()?,
            _ if word.starts_with('.') => {
                return Err(PtxError::new(line, format!("unknown directive `{word}`")));
            }
            _ => items.push(Item::Statement(self.statement()?)),
        }
        Ok(())
    }

    fn label(&mut self, line: u32, name: String, items: &mut Vec<Item>) -> Result<()> {
        if !matches!(self.tokens.get(self.at), Some((_, Token::Word(w))) if w == ".branchtargets") {
            items.push(Item::Label(line, name));
            return Ok(());
        }
        self.at += 1;
        let mut targets = vec![self.word()?];
        while self.eat(',') {
            targets.push(self.word()?);
        }
        self.expect(';')?;
        items.push(Item::Targets(name, targets));
        Ok(())
    }

    fn registers(&mut self, items: &mut Vec<Item>) -> Result<()> {
        self.at += 1;
        let (line, kind) = (self.line(), self.word()?);
        loop {
            let name = self.word()?;
            let count = if self.eat('<') {
                let count = self.integer()?;
                self.expect('>')?;
                Some(count)
            } else {
                None
            };
            items.push(Item::Registers {
                line,
                kind: kind.clone(),
                name,
                count,
            });
            if !self.eat(',') {
                return self.expect(';');
            }
        }
    }
}

/// Parses variables and their initial values.
impl Parser {
    /// Parses variables of one type up to the semicolon.
    fn variables(&mut self, space: Space, add: &mut dyn FnMut(Variable)) -> Result<()> {
        add(self.variable(space)?);
        self.expect(';')
    }

    /// Parses a declaration such as `.align 4 .b8 name[16] = {1, 2}`, after the state space.
    fn variable(&mut self, space: Space) -> Result<Variable> {
        let line = self.line();
        let (mut align, mut width, mut vector) = (0, 0, 1);
        let name = loop {
            let word = self.word()?;
            match word.as_str() {
                ".align" => align = self.integer()?,
                // The attributes of a pointer parameter have no effect.
                ".ptr" | ".global" | ".const" | ".shared" | ".local" => {
                    // This is the alignment of the pointee, not of the parameter.
                    if self.eat_word(".align") {
                        self.integer()?;
                    }
                }
                ".v2" => vector = 2,
                ".v4" => vector = 4,
                _ if word.starts_with('.') => width = width_of(line, &word)?,
                _ => break word,
            }
        };
        let mut count = 1u32;
        while self.eat('[') {
            if self.eat(']') {
                count = 0;
                continue;
            }
            count = count.saturating_mul(self.integer()?);
            self.expect(']')?;
        }
        let init = if self.eat('=') {
            self.initializer(width)?
        } else {
            Vec::new()
        };
        let element = width * vector;
        let size = (count.checked_mul(element))
            .ok_or_else(|| PtxError::new(line, format!("variable `{name}` is too large")))?;
        if init.len() > size as usize {
            return Err(PtxError::new(
                line,
                format!("variable `{name}` has more initial values than elements"),
            ));
        }
        let align = if align == 0 { element } else { align };
        if !align.is_power_of_two() {
            return Err(PtxError::new(
                line,
                format!("variable `{name}`: alignment {align} is not a power of two"),
            ));
        }
        Ok(Variable {
            name,
            space,
            align,
            size,
            init,
        })
    }

    fn initializer(&mut self, width: u32) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        if !self.eat('{') {
            self.value(width, &mut bytes)?;
            return Ok(bytes);
        }
        while !self.eat('}') {
            if self.peek_sign('{') {
                bytes.extend(self.initializer(width)?);
            } else {
                self.value(width, &mut bytes)?;
            }
            self.eat(',');
        }
        Ok(bytes)
    }

    fn value(&mut self, width: u32, bytes: &mut Vec<u8>) -> Result<()> {
        let line = self.line();
        let bits = match self.operand()? {
            Operand::Int(i) => i as u64,
            Operand::F32(b) => b.into(),
            Operand::F64(b) if width == 4 => (f64::from_bits(b) as f32).to_bits().into(),
            Operand::F64(b) => b,
            other => {
                return Err(PtxError::new(
                    line,
                    format!("initial value `{other:?}` is not supported"),
                ));
            }
        };
        bytes.extend(&bits.to_le_bytes()[..width as usize]);
        Ok(())
    }
}

/// Parses instructions and their operands.
impl Parser {
    fn statement(&mut self) -> Result<Statement> {
        let line = self.line();
        let guard = if self.eat('@') {
            let negated = self.eat('!');
            Some((self.word()?, negated))
        } else {
            None
        };
        let opcode = self.word()?;
        let mut operands = Vec::new();
        while !self.eat(';') {
            operands.push(self.operand()?);
            if !self.eat(',') && !self.peek_sign(';') {
                return Err(self.unexpected("`,` or `;`"));
            }
        }
        Ok(Statement {
            line,
            guard,
            opcode,
            operands,
        })
    }

    fn operand(&mut self) -> Result<Operand> {
        let first = self.simple_operand()?;
        if self.eat('|') {
            let second = self.simple_operand()?;
            return Ok(Operand::Pair(first.into(), second.into()));
        }
        Ok(first)
    }

    fn simple_operand(&mut self) -> Result<Operand> {
        if self.eat('[') {
            return self.address();
        }
        if self.eat('{') {
            return self.operands_up_to('}').map(Operand::Vector);
        }
        if self.eat('(') {
            return self.operands_up_to(')').map(Operand::List);
        }
        if self.eat('!') {
            return Ok(Operand::Not(self.simple_operand()?.into()));
        }
        if self.eat('-') {
            return match self.next()? {
                Token::Int(i) => Ok(Operand::Int(-i)),
                Token::F32(b) => Ok(Operand::F32(b ^ (1 << 31))),
                Token::F64(b) => Ok(Operand::F64(b ^ (1 << 63))),
                _ => {
                    self.at -= 1;
                    Err(self.unexpected("a number"))
                }
            };
        }
        match self.next()? {
            Token::Word(w) => Ok(Operand::Name(w)),
            Token::Int(i) => Ok(Operand::Int(i)),
            Token::F32(b) => Ok(Operand::F32(b)),
            Token::F64(b) => Ok(Operand::F64(b)),
            _ => {
                self.at -= 1;
                Err(self.unexpected("an operand"))
            }
        }
    }

    fn operands_up_to(&mut self, end: char) -> Result<Vec<Operand>> {
        let mut found = Vec::new();
        while !self.eat(end) {
            found.push(self.operand()?);
            if !self.eat(',') && !self.peek_sign(end) {
                return Err(self.unexpected("`,`"));
            }
        }
        Ok(found)
    }

    /// Parses an address after the opening bracket.
    fn address(&mut self) -> Result<Operand> {
        let mut base = None;
        let mut offset = 0i64;
        if let Some((_, Token::Word(_))) = self.tokens.get(self.at) {
            base = Some(self.word()?);
        }
        while !self.eat(']') {
            let mut negative = false;
            while self.peek_sign('+') || self.peek_sign('-') {
                negative ^= self.peek_sign('-');
                self.at += 1;
            }
            let Token::Int(value) = self.next()? else {
                self.at -= 1;
                return Err(self.unexpected("an offset in bytes"));
            };
            let value = if negative { -value } else { value };
            offset = offset.wrapping_add(value as i64);
        }
        Ok(Operand::Address(base, offset))
    }
}

/// Methods that access the token stream.
impl Parser {
    fn line(&self) -> u32 {
        let last = self.tokens.last().map_or(1, |(line, _)| *line);
        self.tokens.get(self.at).map_or(last, |(line, _)| *line)
    }

    fn next(&mut self) -> Result<Token> {
        let token = self.tokens.get(self.at).map(|(_, token)| token.clone());
        let token = token.ok_or_else(|| PtxError::new(self.line(), "unexpected end of the module"))?;
        self.at += 1;
        Ok(token)
    }

    fn word(&mut self) -> Result<String> {
        if let Token::Word(word) = self.next()? {
            return Ok(word);
        }
        self.at -= 1;
        Err(self.unexpected("a name"))
    }

    fn integer(&mut self) -> Result<u32> {
        if let Token::Int(i) = self.next()?
            && let Ok(i) = u32::try_from(i)
        {
            return Ok(i);
        }
        self.at -= 1;
        Err(self.unexpected("a number"))
    }

    fn peek_sign(&self, sign: char) -> bool {
        matches!(self.tokens.get(self.at), Some((_, Token::Sign(c))) if *c == sign)
    }

    fn eat(&mut self, sign: char) -> bool {
        let found = self.peek_sign(sign);
        self.at += usize::from(found);
        found
    }

    fn eat_word(&mut self, word: &str) -> bool {
        let found = matches!(self.tokens.get(self.at), Some((_, Token::Word(w))) if w == word);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, sign: char) -> Result<()> {
        if self.eat(sign) {
            return Ok(());
        }
        Err(self.unexpected(&format!("`{sign}`")))
    }

    fn skip_to_semicolon(&mut self) -> Result<()> {
        while !self.eat(';') {
            self.next()?;
        }
        Ok(())
    }

    fn unexpected(&self, expected: &str) -> PtxError {
        match self.tokens.get(self.at) {
            Some((line, token)) => PtxError::new(*line, format!("expected {expected}, found {token}")),
            None => PtxError::new(self.line(), "unexpected end of the module"),
        }
    }
}

fn space(directive: &str) -> Option<Space> {
    Some(match directive {
        ".global" => Space::Global,
        ".const" => Space::Const,
        ".shared" => Space::Shared,
        ".local" => Space::Local,
        ".param" => Space::Param,
        _ => return None,
    })
}

/// Parses a target such as `sm_90a` and returns its number, 90.
fn target(line: u32, word: &str) -> Result<u32> {
    let digits = word.strip_prefix("sm_").map(|w| w.trim_end_matches(['a', 'f']));
    let number = digits.and_then(|d| d.parse().ok());
    number.ok_or_else(|| PtxError::new(line, format!("unknown target `{word}`")))
}

/// Returns the size in bytes of a type such as `.f32`.
fn width_of(line: u32, kind: &str) -> Result<u32> {
    Ok(match kind {
        ".b8" | ".u8" | ".s8" => 1,
        ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => 2,
        ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" | ".bf16x2" => 4,
        ".b64" | ".u64" | ".s64" | ".f64" => 8,
        ".b128" => 16,
        _ => return Err(PtxError::new(line, format!("unknown type `{kind}`"))),
    })
}
