//! Sets of characters.

/// Ranges of characters: after [`CharSet::sorted`] in order, and apart from each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CharSet(Vec<(char, char)>);

impl CharSet {
    /// From the first to the last.
    pub fn of(first: char, last: char) -> CharSet {
        CharSet(vec![(first, last)])
    }

    /// All there are.
    pub fn all() -> CharSet {
        CharSet::of('\0', char::MAX)
    }

    /// Adds a range.
    pub fn add(&mut self, first: char, last: char) {
        self.0.push((first, last));
    }

    /// The same set, with ranges in order.
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

    /// All characters that are not in it.
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

    /// Those of both.
    pub fn union(&self, other: &CharSet) -> CharSet {
        CharSet([&self.0[..], &other.0[..]].concat()).sorted()
    }

    /// Whether a character is in both.
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

    /// No character?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ranges.
    pub fn ranges(&self) -> &[(char, char)] {
        &self.0
    }
}

/// The character after, over those that are none.
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
    fn sets_are_what_they_say() {
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
