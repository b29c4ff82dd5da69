//! Checks `tiles { … }`, the rules of images that are split.

use syn::{Expr, LitStr};

use super::Checker;
use super::media::N_OUT;
use crate::ast::tiles::{Around, GridSyntax, TilesSyntax};
use crate::builtins::Ty;
use crate::model::{Scalar, Tensor, TileGrid, Tiles};
use crate::sym::Dim;

/// Values of `overview:`: whether the overview precedes the tiles.
const PLACES: [(&str, bool); 2] = [("first", true), ("last", false)];

/// Numbers of a tile in a text.
const NUMBERS: [&str; 2] = ["row", "column"];

impl Checker<'_> {
    pub(super) fn tiles(&mut self, tiles: &TilesSyntax) -> Option<Tiles> {
        let Some(grid) = &tiles.grid else {
            let message = "`tiles` needs `grid: ratio(side, tiles = 1..12);`";
            self.errors.at_span(tiles.span, message.to_owned());
            return None;
        };
        let grid = self.tile_grid(grid)?;
        let above = match &tiles.above {
            Some(above) => Some(self.scalar_of(above, Ty::Float)?),
            None => None,
        };
        let text = |given: &Option<LitStr>| given.as_ref().map(LitStr::value).unwrap_or_default();
        let around = |given: &Option<Around>| given.as_ref().unwrap_or(&[None, None]).each_ref().map(text);
        let overview = match &tiles.overview {
            Some((place, texts)) => Some((self.choice(place, &PLACES)?, texts.each_ref().map(text))),
            None => None,
        };
        for text in tiles.tile.iter().flatten().flatten() {
            self.numbered(text, &NUMBERS)?;
        }
        Some(Tiles {
            grid,
            above,
            tile: around(&tiles.tile),
            between: text(&tiles.between),
            between_rows: text(&tiles.between_rows),
            overview,
            whole: around(&tiles.whole),
        })
    }

    fn tile_grid(&mut self, grid: &GridSyntax) -> Option<TileGrid> {
        Some(match grid {
            GridSyntax::Ratio { side, min, max } => {
                let [side, min, max] = self.integers([side, min, max])?;
                TileGrid::Ratio { side, min, max }
            }
            GridSyntax::Lines {
                side,
                min,
                max,
                newline,
                end,
            } => {
                let numbers = self.integers([side, min, max]);
                self.media.newlines = newline.iter().chain([end]).cloned().collect();
                let [side, min, max] = numbers?;
                TileGrid::Lines {
                    side,
                    min,
                    max,
                    newline: newline.as_ref().map(LitStr::value),
                    end: end.value(),
                }
            }
            GridSyntax::Area { side, unit, max } => {
                let [side, unit, max] = self.integers([side, unit, max])?;
                TileGrid::Area { side, unit, max }
            }
            GridSyntax::Longest { side, longest } => {
                let [side, longest] = self.integers([side, longest])?;
                TileGrid::Longest { side, longest }
            }
            GridSyntax::Listed {
                side,
                key,
                newline,
                widths_first,
            } => {
                let side = self.scalar_of(side, Ty::Int)?;
                self.media.newlines = vec![newline.clone()];
                TileGrid::Listed {
                    side,
                    key: key.value(),
                    newline: newline.value(),
                    widths_first: *widths_first,
                }
            }
            GridSyntax::Windows { side, whole, longest } => {
                let [side, whole, longest] = self.integers([side, whole, longest])?;
                TileGrid::Windows { side, whole, longest }
            }
            GridSyntax::Canvas { side, max } => {
                let [side, max] = self.integers([side, max])?;
                TileGrid::Canvas { side, max }
            }
        })
    }

    /// Checks integers; `None` if one of them is invalid. All errors are reported.
    pub(super) fn integers<const N: usize>(&mut self, numbers: [&Expr; N]) -> Option<[Scalar; N]> {
        let checked = numbers.map(|number| self.scalar_of(number, Ty::Int));
        let known: Vec<Scalar> = checked.into_iter().collect::<Option<_>>()?;
        known.try_into().ok()
    }

    /// Returns the names of the tensors with the row after each line and with the last row. Reports names of tensors
    /// that are missing or have a different shape.
    pub(super) fn newlines(&mut self) -> Vec<String> {
        let mut found = Vec::new();
        for name in std::mem::take(&mut self.media.newlines) {
            let is_row = |tensor: &Tensor| tensor.gguf == name.value() && tensor.dims == [Dim::symbol(N_OUT)];
            if self.tensors.iter().any(|t| is_row(&t.tensor)) {
                found.push(name.value());
            } else {
                let message = format!("expected the name of a tensor of shape [{N_OUT}] in `tensors`");
                self.error::<()>(&name, message);
            }
        }
        found
    }

    /// Reports names in braces other than `names`, and braces that are not closed.
    pub(super) fn numbered(&mut self, text: &LitStr, names: &[&str]) -> Option<()> {
        let value = text.value();
        let expected = names
            .iter()
            .map(|name| format!("`{{{name}}}`"))
            .collect::<Vec<_>>()
            .join(" or ");
        for piece in value.split('{').skip(1) {
            let Some((name, _)) = piece.split_once('}') else {
                let message = format!("`{{{piece}` has no `}}`; expected {expected}");
                return self.error(text, message);
            };
            if !names.contains(&name) {
                return self.error(text, format!("expected {expected}, found `{{{name}}}`"));
            }
        }
        Some(())
    }
}
