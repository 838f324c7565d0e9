//! Time of a step by the number of its tokens, as measured on this machine.
//!
//! The self-test of the shell measures it. Nothing else is known of a machine: on a CPU a second token may cost as much
//! again, on a GPU sixteen may cost as much as one.

use crate::batch_plan::Passes;

/// Times of steps. Units: any, the same for all.
#[derive(Debug, Clone, PartialEq)]
pub struct StepCosts {
    /// Time of one pass with this many tokens.
    pub tokens: Curve,
    /// Time of a step with one token of each of this many sequences.
    pub streams: Curve,
    /// How tokens of several sequences go through the model.
    pub passes: Passes,
}

/// Measured values at some numbers, with straight lines between them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Curve(Vec<(u32, f64)>);

impl Curve {
    /// Returns the curve through these points; those that are no measurement are left out.
    pub fn new(points: impl IntoIterator<Item = (u32, f64)>) -> Self {
        let mut points: Vec<_> = points.into_iter().filter(|(n, ms)| *n > 0 && ms.is_finite() && *ms > 0.0).collect();
        points.sort_unstable_by_key(|(n, _)| *n);
        points.dedup_by_key(|(n, _)| *n);
        Self(points)
    }

    /// Returns whether steps of one and of several tokens were measured.
    pub fn is_measured(&self) -> bool {
        self.0.len() > 1 && self.0[0].0 == 1
    }

    /// Returns the value at `n`; beyond the points the curve goes on as between the nearest two, and never falls.
    pub fn at(&self, n: u32) -> f64 {
        let Some((&(first, at_first), rest)) = self.0.split_first() else { return 0.0 };
        match (n, rest) {
            (0, _) => 0.0,
            (_, []) => at_first * f64::from(n) / f64::from(first),
            _ => {
                let last = self.0.len() - 1;
                let above = self.0.partition_point(|(measured, _)| *measured < n).clamp(1, last);
                let ((below_n, below), (above_n, above)) = (self.0[above - 1], self.0[above]);
                let slope = (above - below) / f64::from(above_n - below_n);
                match n {
                    _ if n > above_n => above + slope.max(0.0) * f64::from(n - above_n),
                    _ if n < below_n => (below - slope.max(0.0) * f64::from(below_n - n)).max(0.0),
                    _ => below + slope * f64::from(n - below_n),
                }
            }
        }
    }
}

impl StepCosts {
    /// Returns the time of a step in which `n_streams` sequences compute one token each and others these numbers.
    pub fn step(&self, n_streams: u32, others: impl Iterator<Item = u32> + Clone) -> f64 {
        match self.passes {
            Passes::Together if others.clone().next().is_none() => self.streams.at(n_streams),
            Passes::Together => self.tokens.at(n_streams + others.sum::<u32>()),
            Passes::Apart => self.streams.at(n_streams) + others.map(|n| self.tokens.at(n)).sum::<f64>(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_lead_from_point_to_point_and_on() {
        let curve = Curve::new([(4, 40.0), (1, 10.0), (2, 30.0), (3, f64::NAN), (0, 5.0), (8, 40.0)]);
        let at: Vec<f64> = [0, 1, 2, 3, 4, 6, 8, 100].map(|n| curve.at(n)).to_vec();
        assert_eq!(at, [0.0, 10.0, 30.0, 35.0, 40.0, 40.0, 40.0, 40.0]);
        assert_eq!(Curve::new([(1, 10.0), (2, 30.0)]).at(4), 70.0);
        assert_eq!(Curve::new([(1, 10.0), (2, 8.0)]).at(4), 8.0, "it never falls beyond what was measured");
        assert_eq!(Curve::new([(2, 10.0)]).at(4), 20.0);
        assert_eq!(Curve::default().at(4), 0.0);
        assert!(curve.is_measured() && !Curve::new([(1, 1.0)]).is_measured() && !Curve::default().is_measured());
    }

    #[test]
    fn drafts_go_with_other_tokens_or_in_passes_of_their_own() {
        let curve = Curve::new([(1, 10.0), (2, 20.0), (10, 40.0)]);
        let streams = Curve::new([(1, 10.0), (4, 16.0)]);
        let costs = |passes| StepCosts { tokens: curve.clone(), streams: streams.clone(), passes };
        assert_eq!(costs(Passes::Together).step(4, [].into_iter()), 16.0);
        assert_eq!(costs(Passes::Together).step(4, [3, 3].into_iter()), 40.0);
        assert_eq!(costs(Passes::Apart).step(4, [2, 10].into_iter()), 76.0);
        assert_eq!(costs(Passes::Apart).step(0, [2].into_iter()), 20.0);
    }
}
