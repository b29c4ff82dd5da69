//! Checks `tiles { … }`, the rules of images that are split.

use syn::LitStr;

use super::Checker;
use super::media::N_OUT;
use crate::ast::tiles::{GridSyntax, TilesSyntax};
use crate::builtins::Ty;
use crate::model::{Tensor, TileGrid, Tiles};
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
        let grid = match grid {
            GridSyntax::Ratio { side, min, max } => {
                let numbers = [side, min, max].map(|number| self.scalar_of(number, Ty::Int));
                let [side, min, max] = numbers;
                TileGrid::Ratio {
                    side: side?,
                    min: min?,
                    max: max?,
                }
            }
            GridSyntax::Longest { side, longest } => {
                let numbers = [side, longest].map(|number| self.scalar_of(number, Ty::Int));
                let [side, longest] = numbers;
                TileGrid::Longest {
                    side: side?,
                    longest: longest?,
                }
            }
            GridSyntax::Listed { side, key, newline } => {
                let side = self.scalar_of(side, Ty::Int)?;
                self.media.newline = Some(newline.clone());
                TileGrid::Listed {
                    side,
                    key: key.value(),
                    newline: newline.value(),
                }
            }
            GridSyntax::Canvas { side, max } => {
                let [side, max] = [side, max].map(|number| self.scalar_of(number, Ty::Int));
                TileGrid::Canvas { side: side?, max: max? }
            }
        };
        let above = match &tiles.above {
            Some(above) => Some(self.scalar_of(above, Ty::Float)?),
            None => None,
        };
        let overview = match &tiles.overview {
            Some((place, text)) => Some((self.choice(place, &PLACES)?, text.value())),
            None => None,
        };
        let text = |given: &Option<LitStr>| given.as_ref().map(LitStr::value).unwrap_or_default();
        if let Some(tile) = &tiles.tile {
            self.numbered(tile)?;
        }
        Some(Tiles {
            grid,
            above,
            tile: text(&tiles.tile),
            between: text(&tiles.between),
            between_rows: text(&tiles.between_rows),
            overview,
            whole: text(&tiles.whole),
        })
    }

    /// Returns the tensor after each row of patches. Reports a name that belongs to no tensor of a row's shape.
    pub(super) fn newline(&mut self) -> Option<String> {
        let name = self.media.newline.clone()?;
        let is_row = |tensor: &Tensor| tensor.gguf == name.value() && tensor.dims == [Dim::symbol(N_OUT)];
        if !self.tensors.iter().any(|t| is_row(&t.tensor)) {
            let message = format!("expected the name of a tensor of shape [{N_OUT}] in `tensors`");
            return self.error(&name, message);
        }
        Some(name.value())
    }

    /// Reports unknown names in braces, and braces that are not closed.
    fn numbered(&mut self, text: &LitStr) -> Option<()> {
        let value = text.value();
        for piece in value.split('{').skip(1) {
            let Some((name, _)) = piece.split_once('}') else {
                let message = format!("`{{{piece}` has no `}}`; expected `{{row}}` or `{{column}}`");
                return self.error(text, message);
            };
            if !NUMBERS.contains(&name) {
                return self.error(text, format!("expected `{{row}}` or `{{column}}`, found `{{{name}}}`"));
            }
        }
        Some(())
    }
}
