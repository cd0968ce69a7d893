let second = 0
let date = ''

/** The date for a `Date` header. It changes once a second. */
export function httpDate(): string {
  const now = Math.floor(Date.now() / 1_000)
  if (now !== second) {
    second = now
    date = new Date(now * 1_000).toUTCString()
  }
  return date
}
