//! Choice of types within a budget.
//!
//! The search is greedy. Each matrix starts in its smallest type. Steps along the lower convex hull of a matrix's costs
//! are taken in the order of their cost decrease per byte, if they fit. Finally, single changes that fit and lower the
//! cost are taken, the largest decrease first.

/// Size and cost of a choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Size in bytes.
    pub bytes: usize,
    /// Cost, at least 0.
    pub cost: f64,
}

/// Returns the index of a choice for each group, with a total size within the budget. If the smallest choices exceed
/// the budget, returns their total size as an error. Each group needs at least one choice, sorted by size.
pub fn choose(groups: &[Vec<Choice>], budget: usize) -> Result<Vec<usize>, usize> {
    let mut best = greedy(groups, budget)?;
    let mut order: Vec<usize> = (0..groups.len()).collect();
    order.sort_by_key(|&group| std::cmp::Reverse(groups[group].last().map_or(0, |item| item.bytes)));
    let mut fixed = groups.to_vec();
    for group in order.into_iter().take(LARGEST) {
        for (i, item) in groups[group].iter().enumerate() {
            if item.cost >= groups[group][best[group]].cost {
                continue;
            }
            fixed[group] = vec![*item];
            if let Ok(mut found) = greedy(&fixed, budget) {
                found[group] = i;
                if total_cost(groups, &found) < total_cost(groups, &best) {
                    best = found;
                }
            }
        }
        fixed[group].clone_from(&groups[group]);
    }
    Ok(best)
}

/// Number of matrices whose choices are varied one after the other.
const LARGEST: usize = 4;

fn total_cost(groups: &[Vec<Choice>], chosen: &[usize]) -> f64 {
    groups.iter().zip(chosen).map(|(items, &i)| items[i].cost).sum()
}

/// Returns the choices of the greedy search.
fn greedy(groups: &[Vec<Choice>], budget: usize) -> Result<Vec<usize>, usize> {
    let hulls: Vec<Vec<usize>> = groups.iter().map(|items| hull(items)).collect();
    let mut chosen: Vec<usize> = hulls.iter().map(|hull| hull[0]).collect();
    let smallest: usize = groups.iter().zip(&chosen).map(|(items, &i)| items[i].bytes).sum();
    let mut left = budget.checked_sub(smallest).ok_or(smallest)?;
    let mut steps: Vec<(usize, usize, usize)> = Vec::new();
    for (group, hull) in hulls.iter().enumerate() {
        steps.extend(hull.windows(2).map(|pair| (group, pair[0], pair[1])));
    }
    let gain = |&(group, from, to): &(usize, usize, usize)| -gain(&groups[group], from, to);
    // Equal gains stay in the order of the groups, because the sort is stable.
    steps.sort_by(|a, b| gain(a).total_cmp(&gain(b)));
    for (group, from, to) in steps {
        let more = groups[group][to].bytes - groups[group][from].bytes;
        if chosen[group] == from && more <= left {
            (chosen[group], left) = (to, left - more);
        }
    }
    while let Some((group, to)) = best_change(groups, &chosen, left) {
        left = left + groups[group][chosen[group]].bytes - groups[group][to].bytes;
        chosen[group] = to;
    }
    Ok(chosen)
}

/// Returns the cost decrease per byte of a step.
fn gain(items: &[Choice], from: usize, to: usize) -> f64 {
    let bytes = items[to].bytes.saturating_sub(items[from].bytes);
    (items[from].cost - items[to].cost) / bytes.max(1) as f64
}

/// Returns the choices on the lower convex hull, from the smallest choice to the choice with the lowest cost.
fn hull(items: &[Choice]) -> Vec<usize> {
    let mut hull: Vec<usize> = Vec::new();
    for (i, item) in items.iter().enumerate() {
        if let Some(&last) = hull.last() {
            if item.cost >= items[last].cost {
                continue;
            }
            if item.bytes == items[last].bytes {
                hull.pop();
            }
        }
        while let [.., a, b] = hull[..]
            && gain(items, a, b) <= gain(items, b, i)
        {
            hull.pop();
        }
        hull.push(i);
    }
    hull
}

/// Returns the change, as group and choice, that lowers the cost most and needs at most `left` more bytes.
fn best_change(groups: &[Vec<Choice>], chosen: &[usize], left: usize) -> Option<(usize, usize)> {
    let mut best = None;
    let mut most = 0.0;
    for (group, (items, &now)) in groups.iter().zip(chosen).enumerate() {
        for (i, item) in items.iter().enumerate() {
            let lowered = items[now].cost - item.cost;
            if lowered > most && item.bytes <= items[now].bytes + left {
                (best, most) = (Some((group, i)), lowered);
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;

    fn total(groups: &[Vec<Choice>], chosen: &[usize]) -> (usize, f64) {
        let items = groups.iter().zip(chosen).map(|(items, &i)| items[i]);
        items.fold((0, 0.0), |(bytes, cost), item| (bytes + item.bytes, cost + item.cost))
    }

    /// Returns the minimum cost of all combinations within the budget.
    fn least(groups: &[Vec<Choice>], budget: usize) -> f64 {
        let Some((first, rest)) = groups.split_first() else {
            return 0.0;
        };
        let fitting = first.iter().filter(|item| item.bytes <= budget);
        let costs = fitting.map(|item| item.cost + least(rest, budget - item.bytes));
        costs.fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn chosen_items_cost_no_more_than_the_optimum_of_a_budget_less_one_step() {
        let mut rng = SplitMix64(7);
        let mut n_optimal = 0;
        for _ in 0..200 {
            let groups: Vec<Vec<Choice>> = (0..6)
                .map(|_| {
                    let mut bytes = 0;
                    let items = (0..4).map(|_| {
                        bytes += 1 + rng.below(9);
                        let cost = rng.below(1000) as f64;
                        Choice { bytes, cost }
                    });
                    items.collect()
                })
                .collect();
            let budget = 70;
            let chosen = choose(&groups, budget).unwrap();
            let (bytes, cost) = total(&groups, &chosen);
            assert!(bytes <= budget, "{groups:?}");
            // A step is at most as large as the range of a group.
            assert!(cost <= least(&groups, budget - 27), "{groups:?}");
            let optimum = least(&groups, budget);
            assert!(cost >= optimum);
            n_optimal += usize::from(cost == optimum);
        }
        assert!(n_optimal > 100, "{n_optimal}");
    }

    #[test]
    fn choose_rejects_a_budget_below_the_smallest_types() {
        let item = |bytes, cost| Choice { bytes, cost };
        let groups = vec![vec![item(3, 1.0), item(9, 0.0)], vec![item(4, 1.0)]];
        assert_eq!(choose(&groups, 6), Err(7));
        assert_eq!(choose(&groups, 7), Ok(vec![0, 0]));
        assert_eq!(choose(&groups, 13), Ok(vec![1, 0]));
        // A larger type with a larger cost is never chosen.
        let groups = vec![vec![item(3, 1.0), item(4, 2.0), item(5, 0.5), item(5, 0.25)]];
        assert_eq!(choose(&groups, 4), Ok(vec![0]));
        assert_eq!(choose(&groups, 99), Ok(vec![3]));
    }

    #[test]
    fn choose_shrinks_small_matrices_for_a_large_one() {
        let choice = |bytes, cost| Choice { bytes, cost };
        let large = vec![choice(100, 10.0), choice(150, 0.0)];
        let small = vec![choice(10, 0.5), choice(30, 0.0)];
        let groups = [large, small.clone(), small];
        assert_eq!(choose(&groups, 170).unwrap(), [1, 0, 0]);
        // The first step of each small matrix has the larger decrease per byte.
        let small = vec![choice(10, 6.0), choice(30, 0.0)];
        let groups = [groups[0].clone(), small.clone(), small];
        assert_eq!(choose(&groups, 190).unwrap(), [1, 1, 0]);
    }
}
