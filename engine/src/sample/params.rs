//! The settings of a sampler chain, and the one table they come from: names, types, defaults, limits, documentation
//! and builders. Flags, help, documentation and request fields are derived from [`PARAMS`] and [`SAMPLERS`].

use super::chain::{Build, Sampler, Stream};
use super::{
    Dry, DynamicTemperature, Infill, MinP, Penalties, SampleError, Temperature, Token, TopK, TopNSigma, TopP, Typical,
    Xtc,
};

/// One parameter: a row of [`PARAMS`].
#[derive(Debug)]
pub struct ParamDef {
    /// Field of [`SamplerParams`].
    pub name: &'static str,
    /// Command-line flag, without the dashes.
    pub flag: &'static str,
    /// What it does, in one sentence.
    pub doc: &'static str,
    /// The sampler it belongs to; `None` for those of the chain.
    pub sampler: Option<SamplerKind>,
    /// Values it may have.
    pub allowed: Allowed,
    /// May be given several times (the values are collected).
    pub repeatable: bool,
    /// A number without a fraction.
    pub is_whole: bool,
    /// Its value, as text that [`ParamDef::set`] takes.
    pub get: fn(&SamplerParams) -> String,
    parse: fn(&mut SamplerParams, &[&str]) -> bool,
    number: fn(&SamplerParams) -> Option<f64>,
}

/// The limits of a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Allowed {
    /// Not a number, or every number of its type that is finite.
    Any,
    /// From the first to the second, both included.
    Between(f64, f64),
    /// Greater than the first, up to the second.
    Above(f64, f64),
    /// A list of at most so many entries.
    Count(u32),
}

/// A change to the logit of one token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogitBias {
    /// The token.
    pub token: Token,
    /// What is added to its logit; minus infinity bans it.
    pub bias: f32,
}

/// One sampler: a row of [`SAMPLERS`].
#[derive(Debug)]
pub struct SamplerDef {
    /// Which one.
    pub kind: SamplerKind,
    /// Its name in [`SamplerParams::samplers`].
    pub name: &'static str,
    /// Its letter in the short form of [`SamplerParams::samplers`].
    pub letter: char,
    /// What it does, in one sentence.
    pub doc: &'static str,
    build: fn(&Build) -> Option<Box<dyn Sampler>>,
}

impl SamplerDef {
    /// The sampler with the settings given; `None` where they switch it off.
    pub(super) fn build(&self, build: &Build) -> Option<Box<dyn Sampler>> {
        (self.build)(build)
    }
}

/// Declares [`SamplerParams`], its defaults, [`SamplerKind`], [`PARAMS`] and [`SAMPLERS`] from one table.
macro_rules! sampler_table {
    (
        chain { $($general:tt)* }
        samplers { $(
            $kind:ident($kind_name:literal, $letter:literal): $kind_doc:literal
                = |$build:ident| $builder:expr;
                { $($own:tt)* }
        )* }
    ) => {
        /// A sampler that [`SamplerParams::samplers`] can name, in the default order; infill is not part of it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum SamplerKind { $(#[doc = $kind_doc] $kind),* }

        /// The samplers, in their default order, and infill.
        pub static SAMPLERS: &[SamplerDef] = &[$(SamplerDef {
            kind: SamplerKind::$kind,
            name: $kind_name,
            letter: $letter,
            doc: $kind_doc,
            build: |$build| $builder,
        }),*];

        sampler_table!(@collect [] general { $($general)* } $($kind { $($own)* })*);
    };

    // Flattens the groups into one list of fields, each with its sampler.
    (@collect [$($done:tt)*] general { $($name:ident: $ty:ty = $default:expr, $flag:literal, $allowed:expr, $doc:literal;)* } $($rest:tt)*) => {
        sampler_table!(@collect [$($done)* $({ None, $name: $ty = $default, $flag, $allowed, $doc })*] $($rest)*);
    };
    (@collect [$($done:tt)*] $kind:ident { $($name:ident: $ty:ty = $default:expr, $flag:literal, $allowed:expr, $doc:literal;)* } $($rest:tt)*) => {
        sampler_table!(@collect
            [$($done)* $({ Some(SamplerKind::$kind), $name: $ty = $default, $flag, $allowed, $doc })*] $($rest)*);
    };
    (@collect [$({ $sampler:expr, $name:ident: $ty:ty = $default:expr, $flag:literal, $allowed:expr, $doc:literal })*]) => {
        /// Settings of a sampler chain; the defaults are the field's.
        #[derive(Debug, Clone, PartialEq)]
        pub struct SamplerParams { $(#[doc = $doc] pub $name: $ty),* }

        impl Default for SamplerParams {
            fn default() -> SamplerParams {
                SamplerParams { $($name: $default),* }
            }
        }

        /// Every parameter, in the order of the help.
        pub static PARAMS: &[ParamDef] = &[$(ParamDef {
            name: stringify!($name),
            flag: $flag,
            doc: $doc,
            sampler: $sampler,
            allowed: $allowed,
            repeatable: <$ty as ParamType>::REPEATABLE,
            is_whole: <$ty as ParamType>::WHOLE,
            get: |params| params.$name.show(),
            parse: |params, texts| match <$ty as ParamType>::parse(texts) {
                Some(value) => { params.$name = value; true }
                None => false,
            },
            number: |params| params.$name.number(),
        }),*];
    };
}

use Allowed::{Above, Any, Between, Count};

/// Accepted tokens a sampler may remember: bounds what it allocates.
const MAX_LAST_N: f64 = (1 << 20) as f64;
const UNIT: Allowed = Between(0.0, 1.0);

sampler_table! {
    chain {
        seed: Option<u64> = None, "seed", Any, "Seed of the random numbers; -1 takes one from the system";
        samplers: Vec<SamplerKind> = default_samplers(), "samplers", Count(32),
            "Samplers in order, as names separated by ';' or as letters; infill is one, too";
        min_keep: usize = 0, "min-keep", Any, "Candidates that top-p, min-p, typical and XTC keep at least";
        logit_bias: Vec<LogitBias> = Vec::new(), "logit-bias", Count(1 << 20),
            "Added to the logit of a token, as TOKEN+BIAS or TOKEN-BIAS; TOKEN-inf bans it";
        mirostat: u32 = 0, "mirostat", Between(0.0, 2.0),
            "Mirostat 1 or 2 in place of all samplers but the temperature; 0 is off";
        mirostat_tau: f32 = 5.0, "mirostat-ent", Between(0.0, 1e4), "Target surprise of mirostat, in bits";
        mirostat_eta: f32 = 0.1, "mirostat-lr", UNIT, "Learning rate of mirostat";
        adaptive_target: f32 = -1.0, "adaptive-target", Between(-1.0, 1.0),
            "Adaptive-p selects tokens near this probability, on average; below 0 is off";
        adaptive_decay: f32 = 0.9, "adaptive-decay", Between(0.0, 0.99), "How long adaptive-p remembers what it selected";
    }
    samplers {
        Penalties("penalties", 'e'): "Lowers the logits of tokens among the last ones" = |b| {
            let p = b.params;
            let (repeat, frequency, presence) = (p.penalty_repeat, p.penalty_frequency, p.penalty_presence);
            let on = p.penalty_last_n > 0 && (repeat, frequency, presence) != (1.0, 0.0, 0.0);
            boxed(on, || Penalties::new(p.penalty_last_n, repeat, frequency, presence))
        }; {
            penalty_last_n: usize = 64, "repeat-last-n", Between(0.0, MAX_LAST_N), "Last tokens that are penalized; 0 is off";
            penalty_repeat: f32 = 1.0, "repeat-penalty", Above(0.0, 1e6), "Divides the logit of a repeated token; 1 is off";
            penalty_frequency: f32 = 0.0, "frequency-penalty", Any, "Subtracted for each occurrence of a token";
            penalty_presence: f32 = 0.0, "presence-penalty", Any, "Subtracted once for a token that occurs";
        }
        Dry("dry", 'd'): "Penalizes tokens that extend a repetition, the more the longer it is" = |b| {
            let p = b.params;
            let on = p.dry_multiplier > 0.0 && p.dry_penalty_last_n > 0;
            boxed(on, || {
                let breakers = b.pieces.map(|v| Dry::breakers(&p.dry_sequence_breakers, v)).unwrap_or_default();
                Dry::new(p.dry_multiplier, p.dry_base, p.dry_allowed_length, p.dry_penalty_last_n, breakers)
            })
        }; {
            dry_multiplier: f32 = 0.0, "dry-multiplier", Between(0.0, 1e6), "Strength of DRY; 0 is off";
            dry_base: f32 = 1.75, "dry-base", Between(1.0, 1e6), "Growth of the DRY penalty for each repeated token";
            dry_allowed_length: usize = 2, "dry-allowed-length", Between(0.0, MAX_LAST_N),
                "Length up to which repetitions are free";
            dry_penalty_last_n: usize = 64, "dry-penalty-last-n", Between(0.0, MAX_LAST_N),
                "Last tokens searched for repetitions; 0 is off";
            dry_sequence_breakers: Vec<String> = ["\n", ":", "\"", "*"].map(String::from).into(),
                "dry-sequence-breaker", Count(64), "Text that ends a repetition; \"none\" for no such text";
        }
        TopNSigma("top_n_sigma", 's'): "Masks logits far below the greatest one" = |b| {
            let n = b.params.top_n_sigma;
            boxed(n > 0.0, || TopNSigma::new(n))
        }; {
            top_n_sigma: f32 = -1.0, "top-n-sigma", Any, "Standard deviations below the greatest logit; 0 or less is off";
        }
        TopK("top_k", 'k'): "Keeps the most likely tokens" = |b| {
            let k = b.params.top_k;
            boxed(k > 0, || TopK::new(k as usize))
        }; {
            top_k: i32 = 40, "top-k", Any, "How many of the most likely tokens are kept; 0 or less keeps all";
        }
        Typical("typ_p", 'y'): "Keeps the tokens with a surprise nearest to the entropy" = |b| {
            let p = b.params.typical_p;
            boxed(p < 1.0, || Typical::new(p, b.params.min_keep))
        }; {
            typical_p: f32 = 1.0, "typical", UNIT, "Probability that locally typical tokens sum to; 1 is off";
        }
        TopP("top_p", 'p'): "Keeps the most likely tokens up to a sum of probabilities" = |b| {
            let p = b.params.top_p;
            boxed(p < 1.0, || TopP::new(p, b.params.min_keep))
        }; {
            top_p: f32 = 0.95, "top-p", UNIT, "Probability that the tokens kept sum to; 1 is off";
        }
        MinP("min_p", 'm'): "Keeps the tokens likely enough against the most likely one" = |b| {
            let p = b.params.min_p;
            boxed(p > 0.0, || MinP::new(p, b.params.min_keep))
        }; {
            min_p: f32 = 0.05, "min-p", UNIT, "Least probability relative to the most likely token; 0 is off";
        }
        Xtc("xtc", 'x'): "Now and then removes the most likely tokens" = |b| {
            let p = b.params;
            let on = p.xtc_probability > 0.0 && p.xtc_threshold <= 0.5;
            boxed(on, || Xtc::new(p.xtc_probability, p.xtc_threshold, p.min_keep, b.rng(Stream::Xtc)))
        }; {
            xtc_probability: f32 = 0.0, "xtc-probability", UNIT, "Probability that XTC acts; 0 is off";
            xtc_threshold: f32 = 0.1, "xtc-threshold", UNIT, "Probability from which XTC removes tokens; above 0.5 is off";
        }
        Temperature("temperature", 't'): "Flattens or sharpens the distribution" = |b| {
            let p = b.params;
            if p.dynatemp_range > 0.0 {
                boxed(true, || DynamicTemperature::new(p.temp, p.dynatemp_range, p.dynatemp_exponent))
            } else {
                boxed(p.temp != 1.0, || Temperature::new(p.temp))
            }
        }; {
            temp: f32 = 0.8, "temp", Any, "Temperature; 0 or less takes the most likely token";
            dynatemp_range: f32 = 0.0, "dynatemp-range", Between(0.0, 1e6),
                "The temperature follows the entropy within this distance of temp; 0 is off";
            dynatemp_exponent: f32 = 1.0, "dynatemp-exp", Between(0.0, 1e6), "Power by which the temperature follows the entropy";
        }
        Infill("infill", 'i'): "Ends the text of a gap where nothing is likely to come, and joins tokens that begin alike" = |b| {
            let banned = |token: &Token| b.params.logit_bias.iter().any(|l| l.token == *token && l.bias == f32::NEG_INFINITY);
            b.pieces.map(|pieces| Box::new(Infill::new(pieces, pieces.eot().filter(|token| !banned(token)))) as Box<dyn Sampler>)
        }; {}
    }
}

/// Every sampler but infill, which is for the text of gaps.
fn default_samplers() -> Vec<SamplerKind> {
    let kinds = SAMPLERS.iter().map(|s| s.kind);
    kinds.filter(|kind| *kind != SamplerKind::Infill).collect()
}

fn boxed<S: Sampler + 'static>(on: bool, build: impl FnOnce() -> S) -> Option<Box<dyn Sampler>> {
    on.then(|| Box::new(build()) as Box<dyn Sampler>)
}

impl SamplerKind {
    /// Its row in the table.
    pub fn def(self) -> &'static SamplerDef {
        &SAMPLERS[self as usize]
    }

    /// Its parameters.
    pub fn params(self) -> impl Iterator<Item = &'static ParamDef> {
        PARAMS.iter().filter(move |p| p.sampler == Some(self))
    }
}

impl SamplerParams {
    /// Settings that always take the most likely token.
    pub fn greedy() -> SamplerParams {
        SamplerParams {
            temp: 0.0,
            dynatemp_range: 0.0,
            ..SamplerParams::default()
        }
    }

    /// Sets a parameter by name or flag from text, and checks it. A repeatable one takes any number of texts, the
    /// others one.
    pub fn set(&mut self, name: &str, texts: &[&str]) -> Result<(), SampleError> {
        let def = ParamDef::find(name).ok_or_else(|| SampleError::UnknownParam { name: name.into() })?;
        let mut changed = self.clone();
        if !(def.parse)(&mut changed, texts) {
            return Err(def.error(texts.join(" ")));
        }
        def.check(&changed)?;
        *self = changed;
        Ok(())
    }

    /// Are all numbers within their limits?
    pub fn check(&self) -> Result<(), SampleError> {
        PARAMS.iter().try_for_each(|def| def.check(self))?;
        match self.logit_bias.iter().find(|b| b.bias.is_nan()) {
            Some(b) => Err(SampleError::Param {
                name: "logit_bias",
                value: format!("{b:?}"),
                allowed: "a number, inf or -inf".into(),
            }),
            None => Ok(()),
        }
    }
}

impl ParamDef {
    /// The parameter with this field name or flag.
    pub fn find(name: &str) -> Option<&'static ParamDef> {
        PARAMS.iter().find(|p| p.name == name || p.flag == name)
    }

    /// Its default, as text.
    pub fn default(&self) -> String {
        (self.get)(&SamplerParams::default())
    }

    fn check(&self, params: &SamplerParams) -> Result<(), SampleError> {
        match (self.number)(params) {
            Some(number) if !self.allowed.holds(number) => Err(self.error((self.get)(params))),
            _ => Ok(()),
        }
    }

    fn error(&self, value: String) -> SampleError {
        let form = match self.name {
            "samplers" => " of ".to_string() + &SAMPLERS.iter().map(|s| s.name).collect::<Vec<_>>().join(", "),
            "logit_bias" => " of the form TOKEN+BIAS or TOKEN-BIAS, for example 42-1.5 or 42-inf".into(),
            _ => String::new(),
        };
        let allowed = match (self.name, self.allowed) {
            ("seed", _) => "a whole number from 0 to 2^64 - 1, or -1 for a new one each time".to_owned(),
            (_, Any) if self.is_whole => "a whole number".to_owned(),
            (_, allowed) if self.is_whole => format!("a whole number, {allowed}"),
            (_, allowed) => format!("{allowed}{form}"),
        };
        SampleError::Param {
            name: self.name,
            value,
            allowed,
        }
    }
}

impl Allowed {
    fn holds(self, x: f64) -> bool {
        match self {
            Any => x.is_finite(),
            Between(min, max) => (min..=max).contains(&x),
            Above(min, max) => x > min && x <= max,
            Count(max) => x <= f64::from(max),
        }
    }
}

impl std::fmt::Display for Allowed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Any => write!(f, "a finite number"),
            Between(min, max) => write!(f, "{min} to {max}"),
            Above(min, max) => write!(f, "above {min}, up to {max}"),
            Count(max) => write!(f, "at most {max} entries"),
        }
    }
}

/// What a field of [`SamplerParams`] can be: how it is read from text and shown.
trait ParamType: Sized {
    const REPEATABLE: bool = false;

    /// Numbers have no fraction.
    const WHOLE: bool = false;

    fn parse(texts: &[&str]) -> Option<Self>;
    fn show(&self) -> String;

    /// The value to hold against the limits.
    fn number(&self) -> Option<f64> {
        None
    }
}

macro_rules! number_param {
    ($($ty:ty: $whole:literal),*) => {$(
        impl ParamType for $ty {
            const WHOLE: bool = $whole;

            fn parse(texts: &[&str]) -> Option<Self> {
                only(texts)?.parse().ok()
            }

            fn show(&self) -> String {
                self.to_string()
            }

            fn number(&self) -> Option<f64> {
                Some(*self as f64)
            }
        }
    )*};
}
number_param!(f32: false, i32: true, u32: true, usize: true);

impl ParamType for Option<u64> {
    fn parse(texts: &[&str]) -> Option<Self> {
        match only(texts)? {
            "-1" => Some(None),
            text => text.parse().ok().map(Some),
        }
    }

    fn show(&self) -> String {
        self.map_or("-1".into(), |seed| seed.to_string())
    }
}

impl ParamType for Vec<SamplerKind> {
    fn parse(texts: &[&str]) -> Option<Self> {
        let text = only(texts)?;
        let by_name = |name: &str| SAMPLERS.iter().find(|s| s.name == name).map(|s| s.kind);
        let by_letter = |letter| SAMPLERS.iter().find(|s| s.letter == letter).map(|s| s.kind);
        if text.contains(';') || by_name(text).is_some() {
            text.split(';').map(str::trim).map(by_name).collect()
        } else {
            text.chars().map(by_letter).collect()
        }
    }

    fn show(&self) -> String {
        self.iter().map(|kind| kind.def().name).collect::<Vec<_>>().join(";")
    }

    fn number(&self) -> Option<f64> {
        Some(self.len() as f64)
    }
}

impl ParamType for Vec<LogitBias> {
    const REPEATABLE: bool = true;

    fn parse(texts: &[&str]) -> Option<Self> {
        let one = |text: &&str| {
            let (token, bias) = text.split_at_checked(text.find(['+', '-'])?)?;
            let bias: f32 = bias.parse().ok().filter(|b: &f32| !b.is_nan())?;
            Some(LogitBias {
                token: token.parse().ok()?,
                bias,
            })
        };
        texts.iter().map(one).collect()
    }

    fn show(&self) -> String {
        self.iter()
            .map(|b| format!("{}{:+}", b.token, b.bias))
            .collect::<Vec<_>>()
            .join(" ")
    }

    fn number(&self) -> Option<f64> {
        Some(self.len() as f64)
    }
}

impl ParamType for Vec<String> {
    const REPEATABLE: bool = true;

    fn parse(texts: &[&str]) -> Option<Self> {
        // A shell passes a line feed as two characters more easily than as itself.
        Some(
            texts
                .iter()
                .filter(|t| **t != "none")
                .map(|t| t.replace("\\n", "\n").replace("\\t", "\t"))
                .collect(),
        )
    }

    fn show(&self) -> String {
        self.iter()
            .map(|s| s.escape_debug().to_string())
            .collect::<Vec<_>>()
            .join(" ")
    }

    fn number(&self) -> Option<f64> {
        Some(self.len() as f64)
    }
}

/// The text of a parameter that takes one.
fn only<'a>(texts: &[&'a str]) -> Option<&'a str> {
    match texts {
        [text] => Some(text.trim()),
        _ => None,
    }
}
