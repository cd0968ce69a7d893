/** What `run` returns, or `otherwise` when it throws. */
export function orElse<T, U>(run: () => T, otherwise: U): T | U {
  try {
    return run()
  } catch {
    return otherwise
  }
}
