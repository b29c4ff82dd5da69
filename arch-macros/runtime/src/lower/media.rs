//! Converts the preprocessing and the prompts of media.

use arch_lang::model::{
    Audio, Image, ImageSize as LangImageSize, Media, MediaUse as LangMediaUse, Medium as LangMedium, Scalar,
    TextPart as LangTextPart, TileGrid as LangTileGrid, Tiles,
};
use engine::arch::{
    AudioRules, ClassColumn, Filter, GridList, ImageRules, ImageSize, MediaDecl, MediaUse, Medium, Overview,
    RowPositions, Silence, Spectrogram, TextPart, TileGrid, TileRules,
};
use engine::declared::{Expr, MediaRules, Numbers};

use super::program::Lowering;
use super::statics::{list, text};

/// Converts the medium of an encoder and the text around it.
pub fn declaration(media: &Media) -> MediaDecl {
    MediaDecl {
        medium: match media.medium {
            LangMedium::Image => Medium::Image,
            LangMedium::Audio => Medium::Audio,
        },
        text: list(media.text.iter().map(|piece| match piece {
            LangTextPart::Text(piece) => TextPart::Text(text(piece)),
            LangTextPart::Medium => TextPart::Medium,
        })),
    }
}

/// Converts the treatment of media rows by a graph.
pub fn media_use(used: LangMediaUse) -> MediaUse {
    match used {
        LangMediaUse::None => MediaUse::None,
        LangMediaUse::Causal => MediaUse::Causal,
        LangMediaUse::Whole => MediaUse::Whole,
    }
}

/// Function from the values of a rule's expressions to the rule.
type Form<T> = fn(&[usize]) -> T;

/// Like [`Form`] for the grid of tiles, which also has texts.
type GridForm = dyn Fn(&[usize]) -> TileGrid + Send + Sync;

impl Lowering<'_, '_> {
    /// Converts the image preprocessing.
    pub fn image(&mut self, image: &Image) -> Option<MediaRules<ImageRules>> {
        let size = self.image_size(&image.size)?;
        let Some(resize) = filter(image.resize) else {
            return self.not_at_run_time(image.resize);
        };
        let patch = self.expr(&image.patch)?;
        let block = self.optional(image.block.as_ref())?;
        let window = self.optional(image.window.as_ref())?;
        let Some(class) = class_column(image.class) else {
            return self.not_at_run_time(image.class);
        };
        let Some(positions) = row_positions(image.positions) else {
            return self.not_at_run_time(image.positions);
        };
        let between_rows = text(&image.between_rows);
        let tiles = match &image.tiles {
            Some(tiles) => Some(self.tiles(tiles)?),
            None => None,
        };
        Some(MediaRules::new(move |v| ImageRules {
            size: size(v),
            resize,
            patch: v.int(&patch),
            block: block.as_ref().map_or(1, |n| v.int(n)),
            window: window.as_ref().map_or(0, |n| v.int(n)),
            positions,
            class,
            between_rows,
            tiles: tiles.as_ref().map(|tiles| tiles(v)),
        }))
    }

    fn image_size(&mut self, size: &LangImageSize) -> Option<impl Fn(&dyn Numbers) -> ImageSize + Send + Sync + use<>> {
        let (numbers, form): (Vec<&Scalar>, Form<ImageSize>) = match size {
            LangImageSize::Fixed(side) => (vec![side], |n| ImageSize::Fixed(n[0])),
            LangImageSize::Padded(side) => (vec![side], |n| ImageSize::Padded(n[0])),
            LangImageSize::Contained { side, least } => {
                ([side].into_iter().chain(least).collect(), |n| ImageSize::Contained {
                    side: n[0],
                    least: n.get(1).copied(),
                })
            }
            LangImageSize::Area { side, unit } => (vec![side, unit], |n| ImageSize::Area {
                side: n[0],
                unit: n[1],
                max: usize::MAX,
            }),
            LangImageSize::Longest { side, unit } => (vec![side, unit], |n| ImageSize::Longest {
                side: n[0],
                unit: n[1],
                max: usize::MAX,
            }),
            LangImageSize::Within { unit, max } => (vec![unit, max], |n| ImageSize::Within { unit: n[0], max: n[1] }),
            LangImageSize::Bordered { unit, max } => (vec![unit, max], |n| ImageSize::Bordered {
                unit: n[0],
                area: n[1],
                max: usize::MAX,
            }),
            LangImageSize::Closest { unit, max } => (vec![unit, max], |n| ImageSize::Closest { unit: n[0], max: n[1] }),
            LangImageSize::Stepped { unit, max } => (vec![unit, max], |n| ImageSize::Stepped { unit: n[0], max: n[1] }),
            LangImageSize::Extended { unit, min, max } => (vec![unit, min, max], |n| ImageSize::Extended {
                unit: n[0],
                min: n[1],
                max: n[2],
            }),
            LangImageSize::Fitting { unit, min, max } => (vec![unit, min, max], |n| ImageSize::Fitting {
                unit: n[0],
                min: n[1],
                max: n[2],
            }),
            LangImageSize::Multiple { unit, min, max } => (vec![unit, min, max], |n| ImageSize::Multiple {
                unit: n[0],
                min: n[1],
                max: n[2],
            }),
        };
        let numbers: Vec<Expr> = numbers.iter().map(|s| self.expr(s)).collect::<Option<_>>()?;
        Some(move |v: &dyn Numbers| form(&numbers.iter().map(|n| v.int(n)).collect::<Vec<_>>()))
    }

    /// Converts the rules of images that are split into tiles.
    fn tiles(&mut self, tiles: &Tiles) -> Option<impl Fn(&dyn Numbers) -> TileRules + Send + Sync + use<>> {
        let (numbers, form) = grid_form(&tiles.grid);
        let numbers: Vec<Expr> = numbers.iter().map(|s| self.expr(s)).collect::<Option<_>>()?;
        let above = self.optional(tiles.above.as_ref())?;
        let around = |texts: &[String; 2]| texts.each_ref().map(|part| text(part));
        let (tile, whole) = (around(&tiles.tile), around(&tiles.whole));
        let (between, between_rows) = (text(&tiles.between), text(&tiles.between_rows));
        let overview = tiles.overview.as_ref().map(|(first, before)| Overview {
            first: *first,
            text: around(before),
        });
        Some(move |v: &dyn Numbers| TileRules {
            grid: form(&numbers.iter().map(|n| v.int(n)).collect::<Vec<_>>()),
            above: above.as_ref().map_or(0.0, |n| v.float(n)),
            tile,
            between,
            between_rows,
            overview,
            whole,
        })
    }

    /// Converts the audio preprocessing.
    pub fn audio(&mut self, audio: &Audio) -> Option<MediaRules<AudioRules>> {
        let Some(mel) = spectrogram(audio.mel) else {
            return self.not_at_run_time(audio.mel);
        };
        let Some(silence) = silence(audio.silence) else {
            return self.not_at_run_time(audio.silence);
        };
        let (rate, n_mel) = (self.expr(&audio.rate)?, self.expr(&audio.n_mel)?);
        let (window, step) = (self.expr(&audio.window)?, self.expr(&audio.step)?);
        let (piece, chunk) = (self.optional(audio.piece.as_ref())?, self.expr(&audio.chunk)?);
        Some(MediaRules::new(move |v| AudioRules {
            rate: v.int(&rate),
            mel,
            n_mel: v.int(&n_mel),
            window: v.int(&window),
            step: v.int(&step),
            piece: piece.as_ref().map_or(0, |piece| v.int(piece)),
            silence,
            chunk: v.int(&chunk),
        }))
    }

    /// Records an error for a variant that has no counterpart in the engine. A test finds such variants.
    fn not_at_run_time<T>(&mut self, variant: &str) -> Option<T> {
        let at = self.arch.name_span;
        self.fail(at, format!("`{}` is not available at run time", variant.to_lowercase()))
    }
}

/// Returns the expressions of the choice of a grid, and the function from their values to the choice.
fn grid_form(grid: &LangTileGrid) -> (Vec<&Scalar>, Box<GridForm>) {
    match grid {
        LangTileGrid::Ratio { side, min, max } => {
            let form = |n: &[usize]| TileGrid::Ratio {
                side: n[0],
                min: n[1],
                max: n[2],
            };
            (vec![side, min, max], Box::new(form))
        }
        LangTileGrid::Lines {
            side,
            min,
            max,
            newline,
            end,
        } => {
            let form = lines_form(newline.as_deref().map(text), text(end));
            (vec![side, min, max], Box::new(form))
        }
        LangTileGrid::Area { side, unit, max } => {
            let form = |n: &[usize]| TileGrid::Area {
                side: n[0],
                unit: n[1],
                max: n[2],
            };
            (vec![side, unit, max], Box::new(form))
        }
        LangTileGrid::Longest { side, longest } => {
            let form = |n: &[usize]| TileGrid::Longest {
                side: n[0],
                longest: n[1],
            };
            (vec![side, longest], Box::new(form))
        }
        LangTileGrid::Listed {
            side,
            key,
            newline,
            widths_first,
        } => {
            let (key, newline, widths_first) = (text(key), text(newline), *widths_first);
            let form = move |n: &[usize]| TileGrid::Listed {
                side: n[0],
                key,
                newline,
                widths_first,
                grids: GridList::EMPTY,
            };
            (vec![side], Box::new(form))
        }
        LangTileGrid::Windows { side, whole, longest } => {
            let form = |n: &[usize]| TileGrid::Windows {
                side: n[0],
                whole: n[1],
                longest: n[2],
            };
            (vec![side, whole, longest], Box::new(form))
        }
        LangTileGrid::Canvas { side, max } => {
            let form = |n: &[usize]| TileGrid::Canvas { side: n[0], max: n[1] };
            (vec![side, max], Box::new(form))
        }
    }
}

fn lines_form(newline: Option<&'static str>, end: &'static str) -> impl Fn(&[usize]) -> TileGrid + Send + Sync {
    move |n| TileGrid::Lines {
        side: n[0],
        min: n[1],
        max: n[2],
        newline,
        end,
    }
}

fn filter(variant: &str) -> Option<Filter> {
    Some(match variant {
        "Bilinear" => Filter::Bilinear,
        "Bicubic" => Filter::Bicubic,
        "Lanczos" => Filter::Lanczos,
        _ => return None,
    })
}

fn row_positions(variant: &str) -> Option<RowPositions> {
    Some(match variant {
        "Sequence" => RowPositions::Sequence,
        "Axes" => RowPositions::Axes,
        "Xd" => RowPositions::Xd,
        _ => return None,
    })
}

fn class_column(variant: &str) -> Option<ClassColumn> {
    Some(match variant {
        "None" => ClassColumn::None,
        "First" => ClassColumn::First,
        "Last" => ClassColumn::Last,
        _ => return None,
    })
}

fn spectrogram(variant: &str) -> Option<Spectrogram> {
    match variant {
        "Whisper" => Some(Spectrogram::Whisper),
        "Normalized" => Some(Spectrogram::Normalized),
        "Gemma4" => Some(Spectrogram::Gemma4),
        "Granite" => Some(Spectrogram::Granite),
        "Conformer" => Some(Spectrogram::Conformer),
        "Samples" => Some(Spectrogram::Samples),
        _ => None,
    }
}

fn silence(variant: &str) -> Option<Silence> {
    Some(match variant {
        "Filled" => Silence::Filled,
        "Masked" => Silence::Masked,
        "Bare" => Silence::Bare,
        "Cut" => Silence::Cut,
        "Ended" => Silence::Ended,
        "Trimmed" => Silence::Trimmed,
        "Whole" => Silence::Whole,
        _ => return None,
    })
}
