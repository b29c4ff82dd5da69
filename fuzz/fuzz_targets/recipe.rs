//! Fuzzes the reader of recipes: any input must yield an error, or a recipe that survives a round trip.

#![no_main]

use engine::quantize::Recipe;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| match Recipe::from_json(&String::from_utf8_lossy(bytes)) {
    Ok(recipe) => {
        assert!(recipe.divergence() >= 0.0);
        let again = Recipe::from_json(&recipe.to_json()).expect("a written recipe should be readable");
        assert_eq!(again.types, recipe.types);
    }
    Err(e) => assert!(!e.to_string().is_empty()),
});
