/**
 * The answer of some work, or an error if it takes longer than `ms`.
 *
 * @param late the error, made when the time is over
 * @param work calls `check` before each thing that must not be done later: it throws once the time is over
 */
export async function inTime<T>(ms: number, late: () => Error, work: (check: () => void) => Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  let error: Error | undefined
  const over = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      error = late()
      reject(error)
    }, ms)
  })
  const check = (): void => {
    if (error !== undefined) throw error
  }
  try {
    return await Promise.race([work(check), over])
  } finally {
    clearTimeout(timer)
  }
}
