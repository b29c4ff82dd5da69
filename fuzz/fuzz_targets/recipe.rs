//! Fuzzes the reader of recipes: any input must yield a recipe that is read as it is written, or an error.

#![no_main]

use engine::quantize::Recipe;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| match Recipe::from_json(&String::from_utf8_lossy(bytes)) {
    Ok(recipe) => {
        assert!(recipe.divergence() >= 0.0);
        let again = Recipe::from_json(&recipe.to_json()).expect("a recipe is read as it is written");
        assert_eq!(again.types, recipe.types);
    }
    Err(e) => assert!(!e.to_string().is_empty()),
});
