//! Character sets, stored as sorted ranges.

/// A set of characters as inclusive ranges. [`CharSet::sorted`] makes the ranges sorted and disjoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CharSet(Vec<(char, char)>);

impl CharSet {
    /// Creates a set with one inclusive range.
    pub fn of(first: char, last: char) -> CharSet {
        CharSet(vec![(first, last)])
    }

    /// Creates the set of all characters.
    pub fn all() -> CharSet {
        CharSet::of('\0', char::MAX)
    }

    /// Adds an inclusive range.
    pub fn add(&mut self, first: char, last: char) {
        self.0.push((first, last));
    }

    /// Returns the set with sorted, merged ranges.
    pub fn sorted(mut self) -> CharSet {
        self.0.sort_unstable();
        let mut merged: Vec<(char, char)> = Vec::new();
        for (first, last) in self.0 {
            match merged.last_mut() {
                Some((_, end)) if first <= *end || after(*end) == Some(first) => *end = last.max(*end),
                _ => merged.push((first, last)),
            }
        }
        CharSet(merged)
    }

    /// Returns the complement of the set.
    pub fn complement(&self) -> CharSet {
        let (mut rest, mut next) = (Vec::new(), Some('\0'));
        for &(first, last) in &self.0 {
            if let (Some(start), Some(end)) = (next, before(first))
                && start <= end
            {
                rest.push((start, end));
            }
            next = after(last);
        }
        rest.extend(next.map(|start| (start, char::MAX)));
        CharSet(rest)
    }

    /// Returns the union of two sets.
    pub fn union(&self, other: &CharSet) -> CharSet {
        CharSet([&self.0[..], &other.0[..]].concat()).sorted()
    }

    /// Returns true if the two sets have a common character.
    pub fn overlaps(&self, other: &CharSet) -> bool {
        let (mut i, mut j) = (0, 0);
        while let (Some(a), Some(b)) = (self.0.get(i), other.0.get(j)) {
            if a.0 <= b.1 && b.0 <= a.1 {
                return true;
            }
            if a.1 < b.1 { i += 1 } else { j += 1 }
        }
        false
    }

    /// Returns true for the empty set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the inclusive ranges of the set.
    pub fn ranges(&self) -> &[(char, char)] {
        &self.0
    }
}

/// Returns the next character, skipping the surrogate range.
fn after(c: char) -> Option<char> {
    match c {
        '\u{d7ff}' => Some('\u{e000}'),
        char::MAX => None,
        c => char::from_u32(c as u32 + 1),
    }
}

fn before(c: char) -> Option<char> {
    match c {
        '\0' => None,
        '\u{e000}' => Some('\u{d7ff}'),
        c => char::from_u32(c as u32 - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_operations_match_definition() {
        let mut set = CharSet::of('c', 'f');
        set.add('a', 'b');
        set.add('x', 'x');
        set.add('e', 'g');
        let set = set.sorted();
        assert_eq!(set.ranges(), [('a', 'g'), ('x', 'x')]);
        assert_eq!(set.complement().complement(), set);
        assert!(set.overlaps(&CharSet::of('g', 'w')) && !set.overlaps(&CharSet::of('h', 'w')));
        assert!(!set.overlaps(&set.complement()) && set.union(&set.complement()) == CharSet::all());
        assert!(CharSet::all().complement().is_empty());
        assert_eq!(CharSet::default().complement(), CharSet::all());
    }
}
