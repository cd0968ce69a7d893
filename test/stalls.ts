/** The pauses of this process: on a busy machine it notices late what others have done in time. */

const TICK = 5

export interface Stalls {
  /** The longest pause since the last call, in ms. */
  longest(): number
}

/** Watches until the test ends. */
export function watchStalls(t: { teardown(run: () => unknown): unknown }): Stalls {
  let last = performance.now()
  let longest = 0
  const look = (): void => {
    const now = performance.now()
    longest = Math.max(longest, now - last - TICK)
    last = now
  }
  const timer = setInterval(look, TICK)
  t.teardown(() => clearInterval(timer))
  return {
    longest() {
      look()
      const found = longest
      longest = 0
      return found
    },
  }
}
