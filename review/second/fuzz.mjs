import { simulate } from './build/test/instances/simulator.js'
import { pathToFileURL } from 'node:url'
export function rng(seed){let a=seed>>>0;return()=>{a=(a+0x6D2B79F5)>>>0;let t=a;t=Math.imul(t^t>>>15,t|1);t^=t+Math.imul(t^t>>>7,t|61);return((t^t>>>14)>>>0)/4294967296}}
export function world(seed){
  const R=rng(seed*7919+13),pick=a=>a[Math.floor(R()*a.length)]
  const nb=pick([1,1,2,2,2,3]),count=2+Math.floor(R()*5)
  const scopes=['client','shared','pair','shared']
  const stack=[],scope=[]
  const base=pick([2,5,10,20,50,100,200,500,1000])
  for(let i=0;i<nb;i++){
    const sc=i===nb-1?(R()<.9?'shared':'pair'):pick(['client','pair','shared','own'])
    let r=i===nb-1?base:Math.max(2,Math.round(base*pick([.1,.3,.5,.7,1,1.2,2,4])))
    const cap=Math.max(2,Math.round(r*pick([.2,.5,1,2,4])))
    const l={name:'b'+i,rate:r/1000,capacity:Math.max(cap,pick([3,5,10]))}
    if(R()<.2)l.burst=pick([2,3,5,10])
    if(R()<.15)l.overflow='fair'; 
    stack.push(l);scope.push(sc)
  }
  const farAll=R()<.2?pick([5,15,40]):0
  const dist=Array.from({length:count},()=>farAll||pick([.25,.25,.25,2,8,20,60]))
  const mode=pick(['saturated','saturated','saturated','mixed','late','poisson','onoff'])
  const prio=R()<.25,hang=R()<.2,kill=R()<.1,costs=R()<.1
  const sources=[]
  for(let i=0;i<count;i++){
    const ns=pick([1,1,2,3])
    for(let j=0;j<ns;j++){
      const keys=scope.map(sc=>sc==='client'?`c${i}.${j}`:sc==='own'?`i${i}`:sc==='pair'?`p${i%2}`:'all')
      const depth=pick([1,2,4,8,20,60,100])
      let m=mode==='mixed'?pick(['saturated','poisson','onoff']):mode
      let load={kind:'saturated',depth},extra={}
      if(m==='poisson')load={kind:'poisson',ms:1000/(base/count/ns*pick([.05,.3,.8,1,1.5,3]))}
      if(m==='onoff')extra.onOff={on:pick([100,500,2000]),off:pick([100,500,2000])}
      if(m==='late')extra.from=pick([0,0,1000,2000,3000])
      if(prio)extra.priority=pick([0,3,7])
      if(hang)extra.hangUp={part:pick([.1,.5]),after:pick([20,200,1000])}
      if(costs)extra.cost=pick([1,2])
      sources.push({instance:i,keys,load,...extra})
    }
  }
  return {seed,stack,scope,count,dist,mode,prio,hang,kill,sources,end:base<10?30000:base<50?16000:base>300?6000:10000,isReal:R()<.5,jitter:R()<.3?pick([.5,2,5]):0}
}
export async function check(w){
  const out=[]
  const sim=await simulate({stack:w.stack,count:w.count,sources:w.sources,distance:i=>w.dist[i],isReal:w.isReal,jitter:w.jitter,seed:w.seed})
  const steps=w.end/100,waits=[]
  const t0=Date.now()
  for(let k=1;k<=steps;k++){
    if(w.kill&&k===Math.floor(steps/2))sim.kill(w.count-1)
    await sim.run(k*100)
    waits.push(Array.from({length:w.count},(_,i)=>sim.waitingOf(i)))
    if(Date.now()-t0>25000){out.push(['SLOW',`${k*100} of ${w.end} ms in 25 s real`]);break}
  }
  const rel=sim.releases,end=waits.length*100
  // windows
  const cmax=Math.max(...w.sources.map(s=>s.cost??1))
  w.stack.forEach((l,b)=>{
    const by={}
    for(const r of rel)(by[r.source.keys[b]]??=[]).push(r)
    for(const[k,rs]of Object.entries(by)){
      const users=new Set(w.sources.filter(s=>s.keys[b]===k).map(s=>s.instance)).size
      // cost in [ti,tj] <= r*(W+10)+n*cmax (+burst)
      const n=w.count*cmax+(l.burst?Math.max(l.burst,1)-1:0)
      // max over i<=j of cum(j)-cumBefore(i) - r*(tj-ti)
      let cum=0,best=Infinity,bestAt=0,worst=-Infinity,info
      for(const r of rs){const v=cum-l.rate*r.at;if(v<best){best=v;bestAt=r.at}cum+=r.source.cost??1;const e=cum-l.rate*r.at-best;if(e>worst){worst=e;info=[bestAt,r.at]}}
      const lim=n+l.rate*(10+2*w.jitter)
      if(worst>lim+1e-6)out.push(['WINDOW',`bucket ${b} (${l.rate*1000}/s burst ${l.burst??'-'}) key ${k}: excess ${worst.toFixed(2)} > ${lim.toFixed(2)} in [${info.map(x=>x.toFixed(0))}] W=${(info[1]-info[0]).toFixed(0)}`])
    }
  })
  // starvation of a source: saturated-like: its instance had waiting>0 all the time
  const minRate=Math.min(...w.stack.map(l=>l.rate))
  for(let i=0;i<w.count;i++){
    if(w.kill&&i===w.count-1)continue
    const mine=rel.filter(r=>r.source.instance===i).map(r=>r.at)
    let lastRel=0,p=0,since=null,worst=0,wi
    for(let k=0;k<waits.length;k++){
      const t=(k+1)*100
      let had=false
      while(p<mine.length&&mine[p]<=t){p++;had=true}
      if(had||waits[k][i]===0)since=null
      else{ if(since===null)since=t; if(t-since>worst){worst=t-since;wi=[since,t]}}
    }
    // turns: a generous bound 
    const lim=1500+ 4*w.count*Math.max(1,cmax)/minRate
    if(worst>lim&&!w.prio){
      const others=rel.filter(r=>r.at>wi[0]&&r.at<=wi[1]).length
      out.push([others?'STARVE':'STALL',`instance ${i} waits with ${waits[Math.round(wi[1]/100)-1][i]} and no release in [${wi}]; others had ${others}`])
    }
  }
  // rejected forever: saturated source never released for long
  if(process.env.NOTHING)for(const s of w.sources){
    if(s.load.kind!=='saturated'||s.onOff||w.kill&&s.instance===w.count-1)continue
    const mine=rel.filter(r=>r.source===s).map(r=>r.at)
    let prev=s.from??0,worst=0,wi
    for(const at of[...mine,end]){if(at-prev>worst){worst=at-prev;wi=[prev,at]}prev=at}
    const lim=2500+6*w.sources.length/minRate
    if(worst>lim&&!w.prio)out.push(['NOTHING',`saturated source i${s.instance} keys ${s.keys} depth ${s.load.depth}: no release in [${wi.map(x=>x.toFixed(0))}]; others ${rel.filter(r=>r.at>wi[0]&&r.at<wi[1]).length}`])
  }
  // throughput per bucket: if each last bucket saturated
  const from=w.mode==='late'?4000:1500
  if(w.sources.every(s=>s.load.kind==='saturated'&&!s.onOff)&&!w.kill&&end>from+2000){
    // possible: LP upper bound approximated by max-flow: small; use greedy progressive bound: min over cuts -> compute fluid max by simple LP iteration
    const keys=w.stack.map((l,b)=>[...new Set(w.sources.map(s=>s.keys[b]))])
    // fluid max-min fill to get a feasible rate
    const alloc=w.sources.map(()=>0),frozen=w.sources.map(()=>false),used={}
    for(let it=0;it<50&&frozen.some(x=>!x);it++){
      let inc=Infinity
      w.stack.forEach((l,b)=>{for(const k of keys[b]){const act=w.sources.filter((s,i)=>s.keys[b]===k&&!frozen[i]).length;if(act)inc=Math.min(inc,(l.rate-(used[b+k]??0))/act)}})
      if(!isFinite(inc))break
      w.sources.forEach((s,i)=>{if(!frozen[i]){alloc[i]+=inc;w.stack.forEach((l,b)=>{used[b+s.keys[b]]=(used[b+s.keys[b]]??0)+inc})}})
      w.sources.forEach((s,i)=>{if(w.stack.some((l,b)=>l.rate-(used[b+s.keys[b]]??0)<1e-9))frozen[i]=true})
    }
    const possible=alloc.reduce((a,b)=>a+b,0)
    const got=rel.filter(r=>r.at>=from&&r.at<end).reduce((a,r)=>a+(r.source.cost??1),0)/(end-from)
    // enough depth: each source keeps waiting enough to cover the way
    const minDepth=Math.min(...w.sources.map(s=>s.load.depth))
    const enough=w.sources.every((s,i)=>s.load.depth>=Math.max(2,alloc[i]*(250+4*Math.max(...w.dist))))
    const cap=w.stack.every((l,b)=>l.capacity>=l.rate*(300+4*Math.max(...w.dist))+2*w.count)
    const small=cap?'':' (small capacity)'
    if(enough&&got<.9*possible)out.push([cap?'RATE':'RATE-smallcap',`${(got*1000).toFixed(1)}/s of ${(possible*1000).toFixed(1)}/s = ${(100*got/possible).toFixed(0)} %`])
    // fairness by instance where all sources symmetrical: per source got vs alloc
    if(!w.prio&&!w.hang&&enough){
      const per=w.sources.map(s=>rel.filter(r=>r.source===s&&r.at>=from&&r.at<end).length/(end-from)*(s.cost??1))
      const byI=Array.from({length:w.count},(_,i)=>[w.sources.reduce((a,s,j)=>a+(s.instance===i?per[j]:0),0),w.sources.reduce((a,s,j)=>a+(s.instance===i?alloc[j]:0),0)])
      const ratios=byI.map(([g,a])=>g/a)
      if(Math.min(...ratios)<.5&&(end-from)*Math.min(...byI.map(x=>x[1]))>10)out.push([cap?'FAIR':'FAIR-smallcap',`got/share by instance ${ratios.map(x=>x.toFixed(2))} (depths ${w.sources.map(s=>s.instance+':'+s.load.depth)})`])
    }
  }
  // waiting forever: oldest waiter by source unknown; drain check
  let maxWait=0,mw;for(const r of rel)if(r.at-r.arrivedAt>maxWait){maxWait=r.at-r.arrivedAt;mw=r}
  const wl=Math.max(...w.stack.map(l=>l.capacity/l.rate))
  if(!w.prio&&maxWait>2*wl+3000)out.push(['LONGWAIT',`waited ${maxWait.toFixed(0)} ms, capacity/rate ${wl.toFixed(0)}, at ${mw.at.toFixed(0)} instance ${mw.source.instance}`])
  const bad=sim.rejections.filter(({verdict:v})=>{const t=v.retryAfterMs;return !(Number.isFinite(t)&&t>0)})
  if(bad.length)out.push(['RETRY',`${bad.length} of ${sim.rejections.length}: retryAfterMs ${bad.slice(0,4).map(b=>b.verdict.reason+' '+b.verdict.retryAfterMs+' @'+b.at.toFixed(0)+' i'+b.source.instance)}`])
  return{out,sim,waits}
}
export const brief=w=>`seed ${w.seed} n=${w.count} d=${w.dist} ${w.mode}${w.prio?' prio':''}${w.hang?' hang':''}${w.kill?' kill':''} real=${w.isReal} j=${w.jitter} ${w.stack.map((l,i)=>`[${w.scope[i]} ${l.rate*1000}/s cap ${l.capacity}${l.burst?' burst '+l.burst:''}${l.overflow?' '+l.overflow:''}]`).join('')} src=${w.sources.map(s=>s.instance+':'+(s.load.depth??s.load.ms.toFixed(0)+'ms')+(s.from?'@'+s.from:'')+(s.cost>1?'c'+s.cost:'')).join(' ')}`
if(import.meta.url===pathToFileURL(process.argv[1]).href){
  const [a,b]=process.argv.slice(2).map(Number)
  for(let s=a;s<b;s++){
    const w=world(s);let r
    try{r=await check(w)}catch(e){console.log('CRASH',brief(w),e.stack);continue}
    if(r.out.length){console.log(brief(w));for(const[o,m]of r.out)console.log('   ',o,m)}
  }
  console.log('done',a,b)
}
