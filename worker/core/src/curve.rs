//! A piecewise linear function through measured values.

/// Piecewise linear function through measured values, each for a number of tokens or sequences.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Curve(Vec<(u32, f64)>);

impl Curve {
    /// Returns the curve through these points; invalid measurements are omitted.
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

    /// Returns the measured numbers and their values, in ascending order.
    pub fn points(&self) -> impl Iterator<Item = (u32, f64)> {
        self.0.iter().copied()
    }

    /// Returns the value at `n`; `None` outside of the measured numbers.
    pub fn within(&self, n: u32) -> Option<f64> {
        let ((first, _), (last, _)) = (self.0.first()?, self.0.last()?);
        (*first..=*last).contains(&n).then(|| self.at(n))
    }

    /// Returns the value at `n`. Beyond the points the curve continues the nearest line, and never decreases.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_linear_between_and_beyond_their_points() {
        let curve = Curve::new([(4, 40.0), (1, 10.0), (2, 30.0), (3, f64::NAN), (0, 5.0), (8, 40.0)]);
        let at: Vec<f64> = [0, 1, 2, 3, 4, 6, 8, 100].map(|n| curve.at(n)).to_vec();
        assert_eq!(at, [0.0, 10.0, 30.0, 35.0, 40.0, 40.0, 40.0, 40.0]);
        assert_eq!(Curve::new([(1, 10.0), (2, 30.0)]).at(4), 70.0);
        assert_eq!(Curve::new([(1, 10.0), (2, 8.0)]).at(4), 8.0, "it never decreases beyond the points");
        assert_eq!(Curve::new([(2, 10.0)]).at(4), 20.0);
        assert_eq!(Curve::default().at(4), 0.0);
        assert!(curve.is_measured() && !Curve::new([(1, 1.0)]).is_measured() && !Curve::default().is_measured());
    }

    #[test]
    fn there_is_no_value_outside_of_the_measured_numbers() {
        let curve = Curve::new([(2, 10.0), (4, 30.0)]);
        assert_eq!([1, 2, 3, 4, 5].map(|n| curve.within(n)), [None, Some(10.0), Some(20.0), Some(30.0), None]);
        assert_eq!(Curve::default().within(1), None);
    }
}
