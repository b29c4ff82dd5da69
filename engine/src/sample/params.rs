//! Settings of a sampler chain and the table that defines them: names, types, defaults, ranges,
//! documentation, and builders. Flags, help, documentation, and request fields are derived from [`PARAMS`]
//! and [`SAMPLERS`].

use super::{
    Dry, DynamicTemperature, Infill, LogitBias, MinP, Penalties, Rng, SampleError, Sampler, Temperature, Token,
    TokenPieces, TopK, TopNSigma, TopP, Typical, Xtc,
};

/// A parameter, one row of [`PARAMS`].
#[derive(Debug)]
pub struct ParamDef {
    /// Field of [`SamplerParams`].
    pub name: &'static str,
    /// Command-line flag, without the dashes.
    pub flag: &'static str,
    /// Description, a single sentence.
    pub doc: &'static str,
    /// Sampler that the parameter belongs to; `None` for settings of the whole chain.
    pub sampler: Option<SamplerKind>,
    /// Allowed values.
    pub allowed: NumberRange,
    /// The parameter may be given several times; the values are collected.
    pub repeatable: bool,
    /// Whether the value must be an integer.
    pub is_whole: bool,
    /// Formats the value as a string that [`ParamDef::set`] accepts.
    pub get: fn(&SamplerParams) -> String,
    parse: fn(&mut SamplerParams, &[&str]) -> bool,
    number: fn(&SamplerParams) -> Option<f64>,
}

/// Range of a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NumberRange {
    /// Any finite number or NaN.
    Any,
    /// Inclusive range from minimum to maximum.
    Between(f64, f64),
    /// Range with an exclusive minimum and an inclusive maximum.
    Above(f64, f64),
    /// List with at most this number of entries.
    Count(u32),
}

/// Arguments for the builders in the sampler table.
pub(super) struct BuildContext<'a> {
    pub params: &'a SamplerParams,
    pub pieces: Option<&'a dyn TokenPieces>,
    pub seed: u64,
}

impl BuildContext<'_> {
    /// Creates a random number generator for one sampler.
    pub fn rng(&self, stream: RandomStream) -> Rng {
        Rng::new(self.seed, stream as u64)
    }
}

/// Samplers with a random number generator.
#[derive(Debug, Clone, Copy)]
pub(super) enum RandomStream {
    Select = 0,
    Xtc = 1,
}

/// A sampler, one row of [`SAMPLERS`].
#[derive(Debug)]
pub struct SamplerDef {
    /// Kind of the sampler.
    pub kind: SamplerKind,
    /// Name in [`SamplerParams::samplers`].
    pub name: &'static str,
    /// Letter in the short form of [`SamplerParams::samplers`].
    pub letter: char,
    /// Description, a single sentence.
    pub doc: &'static str,
    build: fn(&BuildContext) -> Option<Box<dyn Sampler>>,
}

impl SamplerDef {
    /// Builds the sampler; returns `None` if the settings disable it.
    pub(super) fn build(&self, build: &BuildContext) -> Option<Box<dyn Sampler>> {
        (self.build)(build)
    }
}

/// Declares [`SamplerParams`], its defaults, [`SamplerKind`], [`PARAMS`], and [`SAMPLERS`] from one table.
macro_rules! sampler_table {
    (
        chain { $($general:tt)* }
        samplers { $(
            $kind:ident($kind_name:literal, $letter:literal): $kind_doc:literal
                = |$build:ident| $builder:expr;
                { $($own:tt)* }
        )* }
    ) => {
        /// A sampler that [`SamplerParams::samplers`] can contain, in the default order. Infill is not part
        /// of the default.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum SamplerKind { $(#[doc = $kind_doc] $kind),* }

        /// All samplers in their default order, followed by infill.
        pub static SAMPLERS: &[SamplerDef] = &[$(SamplerDef {
            kind: SamplerKind::$kind,
            name: $kind_name,
            letter: $letter,
            doc: $kind_doc,
            build: |$build| $builder,
        }),*];

        sampler_table!(@collect [] general { $($general)* } $($kind { $($own)* })*);
    };

    // Flattens the groups into one list of fields with their samplers.
    (@collect [$($done:tt)*] general { $($name:ident: $ty:ty = $default:expr, $flag:literal, $allowed:expr, $doc:literal;)* } $($rest:tt)*) => {
        sampler_table!(@collect [$($done)* $({ None, $name: $ty = $default, $flag, $allowed, $doc })*] $($rest)*);
    };
    (@collect [$($done:tt)*] $kind:ident { $($name:ident: $ty:ty = $default:expr, $flag:literal, $allowed:expr, $doc:literal;)* } $($rest:tt)*) => {
        sampler_table!(@collect
            [$($done)* $({ Some(SamplerKind::$kind), $name: $ty = $default, $flag, $allowed, $doc })*] $($rest)*);
    };
    (@collect [$({ $sampler:expr, $name:ident: $ty:ty = $default:expr, $flag:literal, $allowed:expr, $doc:literal })*]) => {
        /// Settings of a sampler chain. The defaults match llama.cpp.
        #[derive(Debug, Clone, PartialEq)]
        pub struct SamplerParams { $(#[doc = $doc] pub $name: $ty),* }

        impl Default for SamplerParams {
            fn default() -> SamplerParams {
                SamplerParams { $($name: $default),* }
            }
        }

        /// All parameters, in the order of the help.
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

use NumberRange::{Above, Any, Between, Count};

/// Maximum number of accepted tokens that a sampler remembers, which bounds its memory.
const MAX_LAST_N: f64 = (1 << 20) as f64;
const UNIT: NumberRange = Between(0.0, 1.0);

sampler_table! {
    chain {
        seed: Option<u64> = None, "seed", Any, "Seed of the random number generator; -1 for a random seed";
        samplers: Vec<SamplerKind> = default_samplers(), "samplers", Count(32),
            "Samplers in order, as names separated by ';' or as letters; may include infill";
        min_keep: usize = 0, "min-keep", Any, "Minimum number of candidates that top-p, min-p, typical, and XTC keep";
        logit_bias: Vec<LogitBias> = Vec::new(), "logit-bias", Count(1 << 20),
            "Bias for the logit of a token, as TOKEN+BIAS or TOKEN-BIAS; TOKEN-inf bans it";
        mirostat: u32 = 0, "mirostat", Between(0.0, 2.0),
            "Use Mirostat 1 or 2 instead of all samplers except temperature; 0: off";
        mirostat_tau: f32 = 5.0, "mirostat-ent", Between(0.0, 1e4), "Mirostat target surprise, in bits";
        mirostat_eta: f32 = 0.1, "mirostat-lr", UNIT, "Mirostat learning rate";
        adaptive_target: f32 = -1.0, "adaptive-target", Between(-1.0, 1.0),
            "Target mean probability of tokens selected by adaptive-p; negative: off";
        adaptive_decay: f32 = 0.9, "adaptive-decay", Between(0.0, 0.99), "Decay of the adaptive-p history; higher values average over more tokens";
    }
    samplers {
        Penalties("penalties", 'e'): "Penalizes tokens that occur among the last tokens" = |b| {
            let p = b.params;
            let (repeat, frequency, presence) = (p.penalty_repeat, p.penalty_frequency, p.penalty_presence);
            let on = p.penalty_last_n > 0 && (repeat, frequency, presence) != (1.0, 0.0, 0.0);
            boxed(on, || Penalties::new(p.penalty_last_n, repeat, frequency, presence))
        }; {
            penalty_last_n: usize = 64, "repeat-last-n", Between(0.0, MAX_LAST_N), "Number of last tokens to penalize; 0: off";
            penalty_repeat: f32 = 1.0, "repeat-penalty", Above(0.0, 1e6), "Divisor for the logit of a repeated token; 1: off";
            penalty_frequency: f32 = 0.0, "frequency-penalty", Any, "Penalty for each occurrence of a token";
            penalty_presence: f32 = 0.0, "presence-penalty", Any, "Penalty for tokens that occur at least once";
        }
        Dry("dry", 'd'): "Penalizes tokens that would extend a repetition, growing with its length" = |b| {
            let p = b.params;
            let on = p.dry_multiplier > 0.0 && p.dry_penalty_last_n > 0;
            boxed(on, || {
                let breakers = b.pieces.map(|v| Dry::breakers(&p.dry_sequence_breakers, v)).unwrap_or_default();
                Dry::new(p.dry_multiplier, p.dry_base, p.dry_allowed_length, p.dry_penalty_last_n, breakers)
            })
        }; {
            dry_multiplier: f32 = 0.0, "dry-multiplier", Between(0.0, 1e6), "Strength of DRY; 0: off";
            dry_base: f32 = 1.75, "dry-base", Between(1.0, 1e6), "Growth factor of the DRY penalty per repeated token";
            dry_allowed_length: usize = 2, "dry-allowed-length", Between(0.0, MAX_LAST_N),
                "Length up to which repetitions are not penalized";
            dry_penalty_last_n: usize = 64, "dry-penalty-last-n", Between(0.0, MAX_LAST_N),
                "Number of last tokens to search for repetitions; 0: off";
            dry_sequence_breakers: Vec<String> = ["\n", ":", "\"", "*"].map(String::from).into(),
                "dry-sequence-breaker", Count(64), "String that ends a repetition; \"none\" for no such string";
        }
        TopNSigma("top_n_sigma", 's'): "Masks tokens whose logits are far below the maximum" = |b| {
            let n = b.params.top_n_sigma;
            boxed(n > 0.0, || TopNSigma::new(n))
        }; {
            top_n_sigma: f32 = -1.0, "top-n-sigma", Any, "Number of standard deviations below the maximum logit; 0 or less: off";
        }
        TopK("top_k", 'k'): "Keeps the most likely tokens" = |b| {
            let k = b.params.top_k;
            boxed(k > 0, || TopK::new(k as usize))
        }; {
            top_k: i32 = 40, "top-k", Any, "Number of most likely tokens to keep; 0 or less: all";
        }
        Typical("typ_p", 'y'): "Keeps the tokens whose surprise is closest to the entropy" = |b| {
            let p = b.params.typical_p;
            boxed(p < 1.0, || Typical::new(p, b.params.min_keep))
        }; {
            typical_p: f32 = 1.0, "typical", UNIT, "Total probability of locally typical tokens to keep; 1: off";
        }
        TopP("top_p", 'p'): "Keeps the most likely tokens up to a total probability" = |b| {
            let p = b.params.top_p;
            boxed(p < 1.0, || TopP::new(p, b.params.min_keep))
        }; {
            top_p: f32 = 0.95, "top-p", UNIT, "Total probability of tokens to keep; 1: off";
        }
        MinP("min_p", 'm'): "Keeps the tokens with a minimum probability relative to the most likely one" = |b| {
            let p = b.params.min_p;
            boxed(p > 0.0, || MinP::new(p, b.params.min_keep))
        }; {
            min_p: f32 = 0.05, "min-p", UNIT, "Minimum probability relative to the most likely token; 0: off";
        }
        Xtc("xtc", 'x'): "Occasionally removes the most likely tokens" = |b| {
            let p = b.params;
            let on = p.xtc_probability > 0.0 && p.xtc_threshold <= 0.5;
            boxed(on, || Xtc::new(p.xtc_probability, p.xtc_threshold, p.min_keep, b.rng(RandomStream::Xtc)))
        }; {
            xtc_probability: f32 = 0.0, "xtc-probability", UNIT, "Probability of applying XTC; 0: off";
            xtc_threshold: f32 = 0.1, "xtc-threshold", UNIT, "Minimum probability of tokens that XTC removes; above 0.5: off";
        }
        Temperature("temperature", 't'): "Flattens or sharpens the distribution" = |b| {
            let p = b.params;
            if p.dynatemp_range > 0.0 {
                boxed(true, || DynamicTemperature::new(p.temp, p.dynatemp_range, p.dynatemp_exponent))
            } else {
                boxed(p.temp != 1.0, || Temperature::new(p.temp))
            }
        }; {
            temp: f32 = 0.8, "temp", Any, "Temperature; 0 or less selects the most likely token";
            dynatemp_range: f32 = 0.0, "dynatemp-range", Between(0.0, 1e6),
                "Range around temp within which the temperature follows the entropy; 0: off";
            dynatemp_exponent: f32 = 1.0, "dynatemp-exp", Between(0.0, 1e6), "Exponent of the entropy in the dynamic temperature";
        }
        Infill("infill", 'i'): "Ends infilled text if no continuation is likely, and merges tokens with a common prefix" = |b| {
            let banned = |token: &Token| b.params.logit_bias.iter().any(|l| l.token == *token && l.bias == f32::NEG_INFINITY);
            b.pieces.map(|pieces| Box::new(Infill::new(pieces, pieces.eot().filter(|token| !banned(token)))) as Box<dyn Sampler>)
        }; {}
    }
}

/// Returns all samplers except infill.
fn default_samplers() -> Vec<SamplerKind> {
    let kinds = SAMPLERS.iter().map(|s| s.kind);
    kinds.filter(|kind| *kind != SamplerKind::Infill).collect()
}

fn boxed<S: Sampler + 'static>(on: bool, build: impl FnOnce() -> S) -> Option<Box<dyn Sampler>> {
    if on { Some(Box::new(build())) } else { None }
}

impl SamplerKind {
    /// Returns the sampler's row in the table.
    pub fn def(self) -> &'static SamplerDef {
        &SAMPLERS[self as usize]
    }

    /// Returns the sampler's parameters.
    pub fn params(self) -> impl Iterator<Item = &'static ParamDef> {
        PARAMS.iter().filter(move |p| p.sampler == Some(self))
    }
}

impl SamplerParams {
    /// Returns settings that always select the most likely token.
    pub fn greedy() -> SamplerParams {
        SamplerParams {
            temp: 0.0,
            dynatemp_range: 0.0,
            ..SamplerParams::default()
        }
    }

    /// Sets a parameter by name or flag from strings, and validates it. Repeatable parameters accept any number of
    /// strings, all other parameters exactly one.
    ///
    /// # Errors
    /// Returns a [`SampleError`] if no parameter has this name, or a value is invalid. The parameters are unchanged
    /// then.
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

    /// Checks that all numbers are within their ranges.
    ///
    /// # Errors
    /// Returns [`SampleError::Param`] for the first number that is out of its range.
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
    /// Returns the parameter with this field name or flag.
    pub fn find(name: &str) -> Option<&'static ParamDef> {
        PARAMS.iter().find(|p| p.name == name || p.flag == name)
    }

    /// Returns the default, formatted as a string.
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
            ("seed", _) => "an integer from -2^63 to 2^64 - 1".to_owned(),
            (_, Any) if self.is_whole => "an integer".to_owned(),
            (_, allowed) if self.is_whole => format!("an integer, {allowed}"),
            (_, allowed) => format!("{allowed}{form}"),
        };
        SampleError::Param {
            name: self.name,
            value,
            allowed,
        }
    }
}

impl NumberRange {
    fn holds(self, x: f64) -> bool {
        match self {
            Any => x.is_finite(),
            Between(min, max) => (min..=max).contains(&x),
            Above(min, max) => x > min && x <= max,
            Count(max) => x <= f64::from(max),
        }
    }
}

impl std::fmt::Display for NumberRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Any => write!(f, "a finite number"),
            Between(min, max) => write!(f, "{min} to {max}"),
            Above(min, max) => write!(f, "greater than {min}, up to {max}"),
            Count(max) => write!(f, "at most {max} entries"),
        }
    }
}

/// Type of a field of [`SamplerParams`]: conversion from and to strings.
trait ParamType: Sized {
    const REPEATABLE: bool = false;

    /// True for integer types.
    const WHOLE: bool = false;

    fn parse(texts: &[&str]) -> Option<Self>;
    fn show(&self) -> String;

    /// Returns the value to compare with the allowed range.
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
    /// Parses a seed. As in llama.cpp, negative numbers are converted to u32, and the largest u32 means a random seed.
    fn parse(texts: &[&str]) -> Option<Self> {
        let text = only(texts)?;
        let seed = match text.parse::<i64>() {
            Ok(number) if number < 0 => u64::from(number as u32),
            _ => text.parse().ok()?,
        };
        Some(Some(seed).filter(|&seed| seed != u64::from(u32::MAX)))
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
        // Accepts the two characters \n for a newline, which is easier to pass through a shell.
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

/// Returns the string of a parameter that takes exactly one.
fn only<'a>(texts: &[&'a str]) -> Option<&'a str> {
    match texts {
        [text] => Some(text.trim()),
        _ => None,
    }
}
