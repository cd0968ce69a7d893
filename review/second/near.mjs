import {world,check,brief,rng} from './fuzz.mjs'
const [a,b]=process.argv.slice(2).map(Number)
let n=0,bad=0
for(let s=a;s<b;s++){const w=world(s);if(w.prio||w.hang||w.kill||w.stack.length<2)continue
 const R=rng(s);w.dist=w.dist.map(()=>R()<.7?.25:2);w.jitter=0;w.isReal=false
 for(const l of w.stack){delete l.burst;delete l.overflow;l.capacity=Math.max(l.capacity,l.rate*2000,20)}
 n++;const r=(await check(w)).out.filter(([k,m])=>/STARVE|STALL|RATE|FAIR/.test(k))
 if(r.length){bad++;console.log(brief(w));for(const x of r)console.log('   ',x.join(' '))}
 console.error(n,bad)}
