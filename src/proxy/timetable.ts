import { MINUTE, periodEnds, presentRates, settingsAt } from '../config/schedule.js'
import type { Settings } from '../config/settings.js'
import type { Cancel, Clock } from '../core/clock.js'

/** ms. If the clocks have moved by more against each other, one was set. */
const SAME_CLOCKS = 1_000

interface TimetableOptions {
  readonly clock: Clock
  now(): number
  readonly wallNow: () => number
  /** The rates have changed to those of this configuration, or only the moment at which they will change next. */
  readonly changed: (present: Settings, what: 'rates' | 'moment') => void
}

/**
 * Looks once a minute whether rates are to change or quotas start anew, if any depends on the time. So it notices when the clock is
 * set, too.
 */
export class Timetable {
  readonly #options: TimetableOptions
  #settings: Settings | undefined
  #rates = ''
  #periods = ''
  /** ms from the core's clock to that of the system. */
  #offset = 0
  #cancel: Cancel | undefined

  constructor(options: TimetableOptions) {
    this.#options = options
  }

  /** Follows a configuration from now on. Returns it with its present rates. */
  follow(settings: Settings): Settings {
    this.close()
    const wall = this.#options.wallNow()
    this.#settings = settings
    this.#rates = ratesText(settings, wall)
    this.#periods = periodEnds(settings, wall).join()
    if (this.#rates !== '' || this.#periods !== '') this.#plan(wall)
    return this.#presentAt(wall)
  }

  close(): void {
    this.#cancel?.()
    this.#cancel = undefined
  }

  #plan(wall: number): void {
    const { clock } = this.#options
    this.#cancel = clock.at(clock.now() + MINUTE - (wall % MINUTE), () => this.#look())
  }

  #look(): void {
    const wall = this.#options.wallNow()
    this.#plan(wall)
    const rates = ratesText(this.#settings!, wall)
    const isSame = rates === this.#rates
    const periods = periodEnds(this.#settings!, wall).join()
    const moved = Math.abs(wall - this.#options.now() - this.#offset)
    if (isSame && periods === this.#periods && moved < SAME_CLOCKS) return
    this.#rates = rates
    this.#periods = periods
    this.#options.changed(this.#presentAt(wall), isSame ? 'moment' : 'rates')
  }

  #presentAt(wall: number): Settings {
    const now = this.#options.now()
    this.#offset = wall - now
    return settingsAt(this.#settings!, { wall, now })
  }
}

function ratesText(settings: Settings, wall: number): string {
  return presentRates(settings, wall)
    .map(({ rate }) => rate)
    .join()
}
