//! Recipes: types of tensors chosen within a budget, and the costs of all candidate types.

use std::collections::BTreeMap;

use kernels::GgmlType;
use serde::{Deserialize, Serialize};

use super::costs::{MatrixCosts, TypeCost};
use super::error::QuantizeError;
use super::knapsack::{self, Choice};
use super::plan::QuantizePlan;
use crate::gguf::{GgufSet, Value};

/// Digests of the inputs of a cost measurement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecipeOrigin {
    /// SHA-256 of the names, types, shapes, and data of the source's tensors.
    pub source_sha256: String,
    /// SHA-256 of the file of the importance matrix.
    pub imatrix_sha256: Option<String>,
    /// SHA-256 of the calibration text.
    pub text_sha256: String,
    /// Number of scored tokens of the text.
    pub tokens: usize,
}

/// Types of the tensors of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recipe {
    /// Inputs of the measurement; `None` for the types of a GGUF file.
    pub origin: Option<RecipeOrigin>,
    /// Costs of all tensors whose type was chosen.
    pub costs: Vec<MatrixCosts>,
    /// Type of each tensor.
    pub types: BTreeMap<String, GgmlType>,
}

/// Value of the key `format`.
const FORMAT: &str = "llama recipe 1";

#[derive(Serialize, Deserialize)]
struct RecipeFile {
    format: String,
    #[serde(flatten)]
    origin: RecipeOrigin,
    tensors: Vec<RecipeTensor>,
}

#[derive(Serialize, Deserialize)]
struct RecipeTensor {
    name: String,
    #[serde(rename = "type")]
    ty: String,
    weights: usize,
    sensitivity: f64,
    measured: bool,
    /// Bytes, relative error, and divergence of each type.
    types: BTreeMap<String, (usize, f64, f64)>,
}

impl Recipe {
    /// Chooses types for the free tensors of a plan by a greedy search for the lowest total divergence. All tensors of
    /// the file, including tensors of fixed types, have at most `budget` bytes.
    ///
    /// # Errors
    /// Returns an error if the smallest types exceed the budget, or a tensor has no costs.
    pub fn choose(
        origin: Option<RecipeOrigin>,
        mut costs: Vec<MatrixCosts>,
        plan: &QuantizePlan,
        budget: usize,
    ) -> Result<Recipe, QuantizeError> {
        let is_free = |name: &str| {
            plan.tensors
                .iter()
                .any(|tensor| tensor.is_free && tensor.source == name)
        };
        costs.retain(|costs| is_free(&costs.name));
        if let Some(costs) = costs.iter().find(|costs| costs.types.is_empty()) {
            let problem = format!("tensor {} has no costs to choose a type by", costs.name);
            return Err(QuantizeError::InvalidRecipe(problem));
        }
        let is_chosen = |name: &str| costs.iter().any(|costs| costs.name == name);
        let others = plan.tensors.iter().filter(|tensor| !is_chosen(&tensor.source));
        let fixed: usize = others.map(|tensor| tensor.bytes).sum();
        let items = |costs: &MatrixCosts| -> Vec<Choice> {
            let item = |cost: &TypeCost| Choice {
                bytes: cost.bytes,
                cost: cost.divergence,
            };
            costs.types.iter().map(item).collect()
        };
        let groups: Vec<_> = costs.iter().map(items).collect();
        let chosen = knapsack::choose(&groups, budget.saturating_sub(fixed)).map_err(|smallest| {
            let n_weights: usize = plan.tensors.iter().map(|tensor| tensor.n_elements()).sum();
            let smallest = smallest + fixed;
            QuantizeError::SmallBudget {
                smallest,
                bits: smallest as f64 * 8.0 / n_weights.max(1) as f64,
                target: budget,
            }
        })?;
        let types = costs.iter().zip(chosen);
        let types = types
            .map(|(costs, i)| (costs.name.clone(), costs.types[i].ty))
            .collect();
        Ok(Recipe { origin, costs, types })
    }

    /// Returns the expected divergence of the model: the sum over all matrices.
    pub fn divergence(&self) -> f64 {
        self.costs.iter().filter_map(|costs| self.divergence_of(costs)).sum()
    }

    /// Returns the expected divergence that a matrix causes in its type.
    pub fn divergence_of(&self, costs: &MatrixCosts) -> Option<f64> {
        let ty = self.types.get(&costs.name)?;
        let cost = costs.types.iter().find(|cost| cost.ty == *ty)?;
        Some(cost.divergence)
    }

    /// Returns the most frequent type, weighted by the number of weights.
    pub fn most_used(&self) -> Option<GgmlType> {
        let mut sizes: BTreeMap<u32, (usize, GgmlType)> = BTreeMap::new();
        for costs in &self.costs {
            if let Some(&ty) = self.types.get(&costs.name) {
                // The number may come from a damaged recipe file.
                let n_weights = &mut sizes.entry(ty.id()).or_insert((0, ty)).0;
                *n_weights = n_weights.saturating_add(costs.n_weights);
            }
        }
        sizes.into_values().max_by_key(|(n, _)| *n).map(|(_, ty)| ty)
    }

    /// Returns the types of an existing model.
    pub fn of_model(model: &GgufSet) -> Recipe {
        let types = model.tensors().map(|(_, info)| (info.name.clone(), info.ty));
        let costs = model.tensors().map(|(_, info)| MatrixCosts {
            name: info.name.clone(),
            n_weights: info.n_elements(),
            sensitivity: 0.0,
            is_measured: false,
            types: Vec::new(),
        });
        Recipe {
            origin: None,
            costs: costs.collect(),
            types: types.collect(),
        }
    }

    /// Returns metadata that identifies the inputs of the recipe.
    pub fn metadata(&self) -> Vec<(String, Value)> {
        let Some(origin) = &self.origin else {
            return Vec::new();
        };
        let key = |name: &str| format!("quantize.recipe.{name}");
        let mut pairs = vec![
            (key("source_sha256"), Value::from(origin.source_sha256.as_str())),
            (key("text_sha256"), Value::from(origin.text_sha256.as_str())),
            (key("tokens"), Value::from(origin.tokens as u64)),
        ];
        if let Some(digest) = &origin.imatrix_sha256 {
            pairs.push((key("imatrix_sha256"), Value::from(digest.as_str())));
        }
        pairs
    }

    /// Returns the recipe as JSON.
    pub fn to_json(&self) -> String {
        let tensors = self.costs.iter().filter_map(|costs| {
            let types = costs.types.iter();
            Some(RecipeTensor {
                name: costs.name.clone(),
                ty: self.types.get(&costs.name)?.name().to_owned(),
                weights: costs.n_weights,
                sensitivity: costs.sensitivity,
                measured: costs.is_measured,
                types: types
                    .map(|cost| (cost.ty.name().to_owned(), (cost.bytes, cost.error, cost.divergence)))
                    .collect(),
            })
        });
        let file = RecipeFile {
            format: FORMAT.to_owned(),
            origin: self.origin.clone().unwrap_or_default(),
            tensors: tensors.collect(),
        };
        // Maps have string keys, and all numbers are finite, so this cannot fail.
        serde_json::to_string_pretty(&file).unwrap_or_default()
    }

    /// Parses a recipe from JSON.
    ///
    /// # Errors
    /// Returns an error if the text is not a valid recipe.
    pub fn from_json(text: &str) -> Result<Recipe, QuantizeError> {
        let invalid = |problem: String| QuantizeError::InvalidRecipe(problem);
        let file: RecipeFile = serde_json::from_str(text).map_err(|error| invalid(error.to_string()))?;
        if file.format != FORMAT {
            return Err(invalid(format!("the format is {:?}, expected {FORMAT:?}", file.format)));
        }
        let mut recipe = Recipe {
            origin: Some(file.origin),
            ..Recipe::default()
        };
        for tensor in file.tensors {
            let of_tensor = |problem: String| invalid(format!("tensor {}: {problem}", tensor.name));
            let find = |name: &str| {
                let ty = GgmlType::from_name(name).filter(|&ty| kernels::can_encode(ty));
                ty.ok_or_else(|| of_tensor(format!("unknown type {name:?}")))
            };
            let is_valid = |number: f64| number.is_finite() && number >= 0.0;
            if !is_valid(tensor.sensitivity) || tensor.types.values().any(|(_, a, b)| !is_valid(*a) || !is_valid(*b)) {
                return Err(of_tensor("a number is negative".to_owned()));
            }
            let types = tensor.types.iter().map(|(name, &(bytes, error, divergence))| {
                let ty = find(name)?;
                Ok(TypeCost {
                    ty,
                    bytes,
                    error,
                    divergence,
                })
            });
            let mut types = types.collect::<Result<Vec<_>, QuantizeError>>()?;
            types.sort_by_key(|cost| (cost.bytes, cost.ty.id()));
            if recipe.types.insert(tensor.name.clone(), find(&tensor.ty)?).is_some() {
                return Err(of_tensor("the tensor is listed twice".to_owned()));
            }
            recipe.costs.push(MatrixCosts {
                name: tensor.name,
                n_weights: tensor.weights,
                sensitivity: tensor.sensitivity,
                is_measured: tensor.measured,
                types,
            });
        }
        Ok(recipe)
    }

    /// Checks that the tensors with costs exist in a plan, with the sizes of all types.
    ///
    /// # Errors
    /// Returns [`QuantizeError::ForeignRecipe`] for the first tensor that does not match.
    pub fn check(&self, plan: &QuantizePlan) -> Result<(), QuantizeError> {
        for costs in &self.costs {
            let tensor = plan.tensors.iter().find(|tensor| tensor.source == costs.name);
            let fits = |cost: &TypeCost| {
                tensor.is_some_and(|tensor| {
                    let n_in = tensor.shape.first().copied().unwrap_or(0);
                    let rows = tensor.n_elements() / n_in.max(1);
                    cost.ty.row_bytes(n_in).map(|bytes| bytes * rows) == Some(cost.bytes)
                })
            };
            if let Some(other) = costs.types.iter().find(|cost| !fits(cost)) {
                return Err(QuantizeError::ForeignRecipe {
                    tensor: costs.name.clone(),
                    ty: other.ty,
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::GgmlType::*;

    fn recipe() -> Recipe {
        let types = [(Q2_K, 84, 0.1), (Q8_0, 272, 1e-4)];
        let types = types.map(|(ty, bytes, error)| TypeCost {
            ty,
            bytes,
            error,
            divergence: 0.5 * error,
        });
        Recipe {
            origin: Some(RecipeOrigin {
                source_sha256: "ab".to_owned(),
                imatrix_sha256: None,
                text_sha256: "cd".to_owned(),
                tokens: 7,
            }),
            costs: vec![MatrixCosts {
                name: "blk.0.attn_q.weight".to_owned(),
                n_weights: 256,
                sensitivity: 0.5,
                is_measured: true,
                types: types.to_vec(),
            }],
            types: [("blk.0.attn_q.weight".to_owned(), Q8_0)].into(),
        }
    }

    #[test]
    fn recipe_json_round_trips_and_rejects_invalid_values() {
        let recipe = recipe();
        let text = recipe.to_json();
        assert_eq!(Recipe::from_json(&text).unwrap(), recipe);
        assert_eq!((recipe.divergence(), recipe.most_used()), (5e-5, Some(Q8_0)));
        for (from, to, expected) in [
            ("\"q8_0\"", "\"q9_0\"", "unknown type \"q9_0\""),
            ("0.5", "-0.5", "a number is negative"),
            ("recipe 1", "recipe 2", "expected \"llama recipe 1\""),
            ("weights", "weight", "missing field"),
        ] {
            let error = Recipe::from_json(&text.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
