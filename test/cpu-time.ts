/** The time that some work takes the processor, in ms. Unlike its duration it does not grow with what else the machine does. */
export function cpuTime(work: () => unknown): number {
  const before = process.cpuUsage()
  work()
  const { user, system } = process.cpuUsage(before)
  return (user + system) / 1_000
}
