/** The browser of the system, and pages that record their errors. */
import { accessSync, constants } from 'node:fs'
import { delimiter, join } from 'node:path'
import { type Browser, type BrowserContextOptions, chromium, type Page } from 'playwright-core'

const NAMES = ['chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable']
const PLACES = [
  '/Applications/Chromium.app/Contents/MacOS/Chromium',
  '/Applications/Google Chrome.app/Contents/MacOS/Google Chrome',
]
const INSTALL = 'apt-get install chromium (Debian), dnf install chromium (Fedora), brew install google-chrome (macOS)'

function executable(): string {
  const folders = (process.env.PATH ?? '').split(delimiter).filter(Boolean)
  const found = [...folders.flatMap(folder => NAMES.map(name => join(folder, name))), ...PLACES].find(path => {
    try {
      accessSync(path, constants.X_OK)
      return true
    } catch {
      return false
    }
  })
  if (found === undefined) throw new Error(`the tests need Chromium: ${INSTALL}`)
  return found
}

/** Headless. The sandbox does not work for root, and a page of our own does not need it. */
export function openBrowser(): Promise<Browser> {
  return chromium.launch({ executablePath: executable(), args: process.getuid?.() === 0 ? ['--no-sandbox'] : [] })
}

export interface WatchedPage {
  readonly page: Page
  /** Errors on its console, exceptions, violations of its policy, requests to anybody else. */
  readonly faults: string[]
  /** By how many pixels it, or a text in one of its cards, is too wide. */
  overhang(): Promise<number>
}

/** Opens a page; it is closed with the test. */
export async function openPage(
  t: { teardown(run: () => unknown): unknown },
  browser: Browser,
  url: string,
  { beforeLoad, ...options }: BrowserContextOptions & { readonly beforeLoad?: () => Promise<void> } = {},
): Promise<WatchedPage> {
  const context = await browser.newContext({ viewport: { width: 1_280, height: 900 }, ...options })
  t.teardown(() => context.close())
  const page = await context.newPage()
  const faults: string[] = []
  page.on('console', message => {
    if (message.type() === 'error') faults.push(`console: ${message.text()}`)
  })
  page.on('pageerror', error => faults.push(`exception: ${error.message}`))
  page.on('dialog', dialog => {
    faults.push(`dialog: ${dialog.message()}`)
    void dialog.dismiss()
  })
  page.on('request', request => {
    if (request.url().startsWith('data:') || new URL(request.url()).origin === new URL(url).origin) return
    faults.push(`request: ${request.url()}`)
  })
  await page.exposeFunction('violated', (what: string) => void faults.push(`policy: ${what}`))
  await page.addInitScript(`addEventListener('securitypolicyviolation', event => {
    violated(event.violatedDirective + ' ' + event.blockedURI)
  })`)
  await beforeLoad?.()
  await page.goto(url)
  return {
    page,
    faults,
    overhang: () =>
      page.evaluate(`(() => {
        const { scrollWidth, clientWidth } = document.documentElement
        const inside = element => {
          const edge = element.closest('.card').getBoundingClientRect().right
          const range = document.createRange()
          range.selectNodeContents(element)
          return range.getBoundingClientRect().right - edge
        }
        const texts = [...document.querySelectorAll('.card dd, .card dt, .card p, .card h2, .card li')]
        return Math.max(scrollWidth - clientWidth, 0, ...texts.filter(each => each.checkVisibility()).map(inside))
      })()`),
  }
}

/** What an element shows. */
export const text = (page: Page, selector: string): Promise<string> => page.locator(selector).innerText()

/** Resolves once an element has the text. */
export const says = (page: Page, selector: string, hasText: string | RegExp): Promise<void> =>
  page.locator(selector, { hasText }).first().waitFor()

/** Resolves when the page has been drawn again, after what its observers had to do. */
export const frames = (page: Page): Promise<void> =>
  page.evaluate(
    'new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(done))))',
  )

/** Pixels of a canvas for which an expression of r, g, b, x, y (0..1) and a (alpha) holds. */
export const pixels = (page: Page, id: string, expression: string): Promise<number> =>
  page.evaluate(`(() => {
    const canvas = document.getElementById('${id}')
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)
    let found = 0
    for (let i = 0; i < data.length; i += 4) {
      const [r, g, b, a] = data.subarray(i, i + 4)
      const x = ((i / 4) % canvas.width) / canvas.width
      const y = Math.floor(i / 4 / canvas.width) / canvas.height
      if (a > 200 && (${expression})) found++
    }
    return found
  })()`)

/** For `pixels`: the colour of what is turned away. */
export const ORANGE = 'r > 190 && g < 110 && b < 60'
