//! Checks the parts of an `encoder!`: the medium, its preprocessing, and the text around it.

use proc_macro2::{Ident, Span};
use quote::ToTokens;
use syn::{Expr, LitStr};

use super::{Checker, Place};
use crate::ast::media::{ImageSyntax, MediaSyntax, PatchesSyntax, SizeSyntax, TextPiece, TextSyntax};
use crate::ast::tiles::TilesSyntax;
use crate::builtins::Ty;
use crate::model::{Arg, Image, ImageSize, Media, MediaUse, Medium, Scalar, TextPart, Value, ValueKind};
use crate::ops::OpSpec;
use crate::sym::{Dim, Multiple, Shape};

/// Builtin symbols and inputs that describe tokens, which an encoder does not have.
pub(super) const OF_TEXT: [&str; 6] = ["n_vocab", "n_ctx_train", "n_labels", "n_mtp", "is_mtp", "tokens"];

/// Values of `resize:`, each with the engine's variant.
const FILTERS: [(&str, &str); 3] = [("bilinear", "Bilinear"), ("bicubic", "Bicubic"), ("lanczos", "Lanczos")];

/// Values of `positions:`, each with the engine's variant.
const POSITIONS: [(&str, &str); 3] = [("sequence", "Sequence"), ("axes", "Axes"), ("xd", "Xd")];

/// Values of `class:`.
const CLASSES: [(&str, &str); 2] = [("first", "First"), ("last", "Last")];

/// Operations that only encoders have.
const OF_ENCODERS: [&str; 41] = [
    "rope_grid",
    "resized",
    "beside",
    "with_class",
    "without_class",
    "at_columns",
    "at_rows",
    "conv_2d",
    "conv_frames",
    "depthwise",
    "local_attention",
    "sinusoids",
    "rope_time",
    "sounding",
    "block_attention",
    "full_attention",
    "grid_sinusoids",
    "at_distances",
    "padded_rows",
    "repeat_rows",
    "prepend",
    "depthwise_2d",
    "sinusoids_of",
    "distance_attention",
    "batch_norm",
    "keep",
    "kept",
    "sampled",
    "in_blocks",
    "mean_rows",
    "depthwise_grid",
    "with_newlines",
    "join_rows",
    "drop_rows",
    "in_windows",
    "from_windows",
    "by_columns",
    "by_lines",
    "grid_attention",
    "conv_grid",
    "resized_to",
];

/// Number of a medium in a prompt, in the texts around its rows.
const NUMBER: &str = "number";

/// Values of `of:`.
const MEDIA: [(&str, Medium); 2] = [("image", Medium::Image), ("audio", Medium::Audio)];

/// Width of the rows that an encoder returns.
pub(super) const N_OUT: &str = "n_out";

/// State of the checks about media.
#[derive(Default)]
pub(super) struct MediaScope {
    /// The declaration is an `encoder!`.
    pub is_encoder: bool,
    /// The parts other than the graph are being checked.
    is_in_facts: bool,
    /// Side of a patch, as written.
    patch: Option<Expr>,
    /// A learned column precedes the patches.
    has_class: bool,
    /// Names of the tensors with the row after each line and with the last row of an image.
    pub(super) newlines: Vec<LitStr>,
    /// Treatment of media rows by the graph.
    pub used: MediaUse,
}

impl Checker<'_> {
    /// Checks the parts of an `encoder!`. Scalars are checked as part of the graph, so that the model stores their
    /// values.
    pub(super) fn media(&mut self, media: &MediaSyntax, has_audio: bool) -> Option<Media> {
        self.media.is_encoder = true;
        self.media.is_in_facts = true;
        let before = std::mem::replace(&mut self.place, Place::Graph);
        let medium = match &media.of {
            Some(word) => self.choice(word, &MEDIA),
            None => self.missing_part("of", "`of: image;`"),
        };
        let prefix = match medium {
            Some(Medium::Audio) => "a.blk",
            _ => "v.blk",
        };
        prefix.clone_into(&mut self.groups[0].prefix);
        let image = match &media.image {
            Some(image) => self.image(image, media.tiles.as_ref()).map(Some),
            None if medium == Some(Medium::Audio) => Some(None),
            None => self.missing_part("image", "`image { size: …; resize: …; patches: …; }`"),
        };
        if medium == Some(Medium::Audio) {
            let image = media.image.as_ref().map(|image| ("image", image.span));
            let tiles = media.tiles.as_ref().map(|tiles| ("tiles", tiles.span));
            for (part, span) in image.into_iter().chain(tiles) {
                self.errors
                    .at_span(span, format!("`{part}` is for image encoders, not for audio encoders"));
            }
        }
        if medium == Some(Medium::Audio) && !has_audio {
            self.missing_part::<()>("audio", "`audio { rate: …; mel: …; frames: …; chunk: …; }`");
        }
        let text = match &media.text {
            Some(text) => self.prompt(text, medium),
            None => self.missing_part("text", "`text { \"<image>\", image }`"),
        };
        if self.find_hparam(N_OUT).is_none() {
            self.missing_part::<()>(
                N_OUT,
                "`n_out: usize = \"projection_dim\";` to `hparams`, the width of the rows",
            );
        }
        self.place = before;
        self.media.is_in_facts = false;
        Some(Media {
            medium: medium?,
            image: image?,
            text: text?,
        })
    }

    fn missing_part<T>(&mut self, what: &str, add: &str) -> Option<T> {
        self.errors
            .at_span(Span::call_site(), format!("the encoder has no `{what}`; add {add}"));
        None
    }

    fn image(&mut self, image: &ImageSyntax, tiles: Option<&TilesSyntax>) -> Option<Image> {
        let size = match &image.size {
            Some(size) => self.image_size(size),
            None => self.lacks(image, "size: fixed(image_size);"),
        };
        let resize = match &image.resize {
            Some(word) => self.choice(word, &FILTERS),
            None => self.lacks(image, "resize: bilinear;"),
        };
        let positions = match &image.positions {
            Some(word) => self.choice(word, &POSITIONS),
            None => Some("Sequence"),
        };
        let class = match &image.class {
            Some(word) => self.choice(word, &CLASSES)?,
            None => "None",
        };
        self.media.has_class = image.class.is_some();
        let tiles = match tiles {
            Some(tiles) => Some(self.tiles(tiles)?),
            None => None,
        };
        let Some(PatchesSyntax {
            side: patch,
            block,
            window,
            has_whole_windows,
        }) = &image.patches
        else {
            return self.lacks(image, "patches: patch_size;");
        };
        let side = self.scalar_of(patch, Ty::Int);
        // An invalid side may contain `patches`, whose width depends on the side.
        self.media.patch = side.is_some().then(|| patch.clone());
        let block = match block {
            Some(block) => Some(self.scalar_of(block, Ty::Int)?),
            None => None,
        };
        let window = match window {
            Some(window) => Some(self.scalar_of(window, Ty::Int)?),
            None => None,
        };
        if let Some(block) = &block {
            // The loader rejects sizes that are not a multiple of a block.
            let side = match &window {
                Some(window) if *has_whole_windows => block.dim.mul(&window.dim),
                _ => block.dim.clone(),
            };
            let n_patches = side.mul(&side);
            self.multiples.extend(Multiple::new(&self.n_patches(), &n_patches));
        }
        Some(Image {
            size: size?,
            resize: resize?,
            patch: side?,
            block,
            window,
            positions: positions?,
            class,
            between_rows: image.between_rows.as_ref().map(LitStr::value).unwrap_or_default(),
            tiles,
        })
    }

    fn image_size(&mut self, size: &SizeSyntax) -> Option<ImageSize> {
        Some(match size {
            SizeSyntax::Fixed(side) => ImageSize::Fixed(self.scalar_of(side, Ty::Int)?),
            SizeSyntax::Padded(side) => ImageSize::Padded(self.scalar_of(side, Ty::Int)?),
            SizeSyntax::Contained { side, least } => {
                let least = least.as_ref().map(|least| self.scalar_of(least, Ty::Int));
                ImageSize::Contained {
                    side: self.scalar_of(side, Ty::Int)?,
                    least: match least {
                        Some(least) => Some(least?),
                        None => None,
                    },
                }
            }
            SizeSyntax::Area { side, unit } => {
                let [side, unit] = [side, unit].map(|number| self.scalar_of(number, Ty::Int));
                ImageSize::Area {
                    side: side?,
                    unit: unit?,
                }
            }
            SizeSyntax::Longest { side, unit } => {
                let [side, unit] = [side, unit].map(|number| self.scalar_of(number, Ty::Int));
                ImageSize::Longest {
                    side: side?,
                    unit: unit?,
                }
            }
            SizeSyntax::Within { unit, max } => {
                let [unit, max] = [unit, max].map(|number| self.scalar_of(number, Ty::Int));
                ImageSize::Within { unit: unit?, max: max? }
            }
            SizeSyntax::Bordered { unit, max } => {
                let [unit, max] = [unit, max].map(|number| self.scalar_of(number, Ty::Int));
                ImageSize::Bordered { unit: unit?, max: max? }
            }
            SizeSyntax::Closest { unit, max } => {
                let [unit, max] = self.integers([unit, max])?;
                ImageSize::Closest { unit, max }
            }
            SizeSyntax::Stepped { unit, max } => {
                let [unit, max] = self.integers([unit, max])?;
                ImageSize::Stepped { unit, max }
            }
            SizeSyntax::Extended { unit, min, max } => {
                let [unit, min, max] = self.integers([unit, min, max])?;
                ImageSize::Extended { unit, min, max }
            }
            SizeSyntax::Fitting { unit, min, max } => {
                let [unit, min, max] = self.integers([unit, min, max])?;
                ImageSize::Fitting { unit, min, max }
            }
            SizeSyntax::Multiple { unit, min, max } => {
                let [unit, min, max] = self.integers([unit, min, max])?;
                ImageSize::Multiple { unit, min, max }
            }
        })
    }

    /// Returns the number of patches.
    fn n_patches(&self) -> Dim {
        if self.media.has_class {
            Dim::n_patches()
        } else {
            Dim::n_tokens()
        }
    }

    fn lacks<T>(&mut self, image: &ImageSyntax, line: &str) -> Option<T> {
        self.errors.at_span(image.span, format!("`image` needs `{line}`"));
        None
    }

    fn prompt(&mut self, text: &TextSyntax, medium: Option<Medium>) -> Option<Vec<TextPart>> {
        let mut parts = Vec::new();
        for piece in &text.pieces {
            parts.push(match piece {
                TextPiece::Text(text) => {
                    self.numbered(text, &[NUMBER])?;
                    TextPart::Text(text.value())
                }
                TextPiece::Medium(word) => {
                    let found = self.choice(word, &MEDIA)?;
                    if medium.is_some_and(|medium| medium != found) {
                        return self.error(word, format!("`{word}` is not the medium in `of: …;`"));
                    }
                    TextPart::Medium
                }
            });
        }
        let n = parts.iter().filter(|part| **part == TextPart::Medium).count();
        if n != 1 {
            let medium = MEDIA.iter().find(|(_, found)| Some(*found) == medium);
            let medium = medium.map_or("image", |(name, _)| name);
            let message = format!("`text` must contain `{medium}` once, where its rows are placed; found {n}");
            self.errors.at_span(text.span, message);
            return None;
        }
        Some(parts)
    }

    /// Returns the input `patches`: the color values of a patch in each column.
    pub(super) fn patches(&mut self, name: &Ident) -> Option<Value> {
        if self.media.is_in_facts {
            return self.error(name, "`patches` is only available in the graph");
        }
        let Some(side) = self.media.patch.clone() else {
            // A missing or invalid `patches:` was reported.
            if self.media.is_encoder {
                return None;
            }
            return self.error(name, "`patches` is only available in `encoder!`");
        };
        let width = self.width_of(&syn::parse_quote!(3 * (#side) * (#side)), name)?;
        Some(Value {
            shape: Shape(vec![width.dim.clone(), self.n_patches()]),
            kind: ValueKind::Patches(name.span(), width),
        })
    }

    /// Checks the width of an input, which is checked at each use.
    pub(super) fn width_of(&mut self, width: &Expr, at: &Ident) -> Option<Scalar> {
        self.admit(&width.to_token_stream(), &Vec::new(), at)?;
        self.scalar_of(width, Ty::Int)
    }

    /// Checks the result of an encoder: rows of the language model's width.
    pub(super) fn media_rows(&mut self, value: Value, at: &Expr) -> Option<Value> {
        if value.shape.rank() == 2 && value.shape.dim(0) == Dim::symbol(N_OUT) {
            return Some(value);
        }
        let message = format!("the result must be [{N_OUT}, rows], found {}", value.shape);
        self.error(at, message)
    }

    /// Reports a symbol about tokens in an encoder.
    pub(super) fn allow_in_encoder(&mut self, name: &Ident) -> Option<()> {
        if self.media.is_encoder && OF_TEXT.iter().any(|of_text| name == of_text) {
            return self.error(name, format!("an encoder has no tokens, so `{name}` is not available"));
        }
        Some(())
    }

    /// Records that the graph takes media rows, or lets the rows of a medium attend to each other.
    pub(super) fn note_media_use(&mut self, op: &OpSpec, given: &[Arg], name: &Ident) -> Option<()> {
        let argument = op.params.iter().position(|p| p.name == "media");
        let is_whole = argument.is_some_and(|i| !matches!(given[i], Arg::Default));
        let used = match op.name {
            "with_media" | "deepstack" => MediaUse::Causal,
            _ if is_whole => MediaUse::Whole,
            "with_class" | "without_class" if self.media.is_encoder && !self.media.has_class => {
                return self.error(name, format!("`{}` needs `class: first;` in `image`", op.name));
            }
            "resized" if self.media.has_class => {
                return self.error(name, "`resized` is not available with `class: first;` in `image`");
            }
            used if OF_ENCODERS.contains(&used) && !self.media.is_encoder => {
                return self.error(name, format!("`{}` is only available in `encoder!`", op.name));
            }
            _ => return Some(()),
        };
        if self.media.is_encoder {
            let what = if is_whole { "media = …" } else { op.name };
            return self.error(name, format!("`{what}` is for language models, not for encoders"));
        }
        self.media.used = self.media.used.max(used);
        Some(())
    }
}
