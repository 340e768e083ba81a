//! The results of a batch while they come in: one place for each item.

/// One place for each item of a batch, filled in any order.
#[derive(Debug)]
pub struct BatchResults<T>(Vec<Option<T>>);

impl<T> BatchResults<T> {
    /// Places for so many items, all open.
    pub fn new(count: usize) -> Self {
        Self((0..count).map(|_| None).collect())
    }

    /// The items that have no result yet.
    pub fn open(&self) -> Vec<usize> {
        let open = self.0.iter().enumerate().filter(|(_, result)| result.is_none());
        open.map(|(at, _)| at).collect()
    }

    /// Sets the result of an item. A later result replaces an earlier one.
    ///
    /// # Panics
    /// If there is no such item.
    pub fn set(&mut self, at: usize, result: T) {
        self.0[at] = Some(result);
    }

    /// The results in the order of the items. `forgotten` makes the result of an item that got none.
    pub fn finish(self, mut forgotten: impl FnMut() -> T) -> Vec<T> {
        let result = |result: Option<T>| result.unwrap_or_else(&mut forgotten);
        self.0.into_iter().map(result).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_any_order_and_leave_in_that_of_the_items() {
        let mut results = BatchResults::new(3);
        results.set(2, "c");
        results.set(0, "a");
        assert_eq!(results.open(), [1]);
        assert_eq!(results.finish(|| "forgotten"), ["a", "forgotten", "c"]);
    }
}
