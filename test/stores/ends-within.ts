/**
 * Whether work ends in this time by the timers of this process, in ms. While the process is held up, those of the work are late, too,
 * and what has come meanwhile is read first.
 */
export async function endsWithin(ms: number, work: Promise<unknown>): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<boolean>(resolve => {
    timer = setTimeout(async () => {
      for (let turn = 0; turn < 5; turn += 1) await new Promise(setImmediate)
      resolve(false)
    }, ms)
  })
  const ended = work.then(
    () => true,
    () => true,
  )
  return Promise.race([ended, late]).finally(() => clearTimeout(timer))
}
